"""The steps of a move between any two configurations are allowed by Raft and come to an end.

A member that is needed is never removed before others can replace it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.broker.controller.rebalance_steps import is_complete, next_step, report_of
from sandq.metadata.records import Partition
from sandq.model.members import has_majority, node_of
from sandq.raft import Members, guards
from tests.support.examples import examples

MEMBERS = [f"n{at}#{at}" for at in range(6)]
sets = st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=4, unique=True)
STEPS_MOST = 40


def assigned(wanted: list[str], *, former: tuple[str, ...] = (), epoch: int = 1, settled: int = 0) -> Partition:
    return Partition(1, (), tuple(wanted), former, epoch, settled)


def is_allowed(before: Members, after: Members, leader: str, caught_up: set[str]) -> bool:
    return guards.may_change(before, after, changed_at=1, committed=2, term_start=1, member=leader, caught_up=caught_up)


@settings(max_examples=examples(300))
@given(sets, sets, st.sets(st.sampled_from(MEMBERS)), st.data())
def test_from_any_members_to_any_others(
    voters: list[str], wanted: list[str], learners: set[str], data: st.DataObject
) -> None:
    members = Members(tuple(voters), tuple(sorted(learners - set(voters))))
    leader = data.draw(st.sampled_from(voters))
    up = {node_of(member) for member in MEMBERS}
    for _ in range(STEPS_MOST):
        caught_up = set(members.learners) if data.draw(st.booleans()) else set()
        step = next_step(wanted, members, leader, caught_up, up, up)
        if isinstance(step, str):
            assert step in members.voters and step in wanted and leader not in wanted
            leader = step
        elif step is not None:
            assert is_allowed(members, step, leader, caught_up), (members, step)
            kept = len(set(step.voters) & set(wanted))
            assert kept >= len(set(members.voters) & set(wanted)), "wanted voters keep their votes"
            if len(step.voters) < len(members.voters):
                assert set(wanted) <= set(step.voters), "no member leaves before all new members are there"
            members = step
        elif not members.learners:
            break
    else:
        members = _at_last(wanted, members, leader)
    assert is_complete(assigned(wanted), members)


def _at_last(wanted: list[str], members: Members, leader: str) -> Members:
    """Return the members after all steps of the move, if learners catch up at once."""
    up = {node_of(member) for member in MEMBERS}
    for _ in range(STEPS_MOST):
        step = next_step(wanted, members, leader, members.learners, up, up)
        if isinstance(step, str):
            leader = step
        elif step is not None:
            members = step
    return members


@given(sets, sets, st.sets(st.sampled_from(range(6))), st.data())
def test_moves_with_unreachable_nodes_keep_a_majority(
    voters: list[str], wanted: list[str], gone: set[int], data: st.DataObject
) -> None:
    """While nodes are unreachable, the remaining steps wait, and the earlier voters stay voters."""
    leader = data.draw(st.sampled_from(voters))
    up = {node_of(member) for member in MEMBERS} - {f"n{at}" for at in gone} | {node_of(leader)}
    members = Members(tuple(voters))
    for _ in range(STEPS_MOST):
        reachable = [learner for learner in members.learners if node_of(learner) in up]
        step = next_step(wanted, members, leader, reachable, up, up)
        if step is None:
            break
        if isinstance(step, str):
            assert node_of(step) in up
            leader = step
            continue
        assert is_allowed(members, step, leader, set(reachable))
        assert all(node_of(member) in up for member in {*step.learners} - {*members.learners})
        members = step
    if not has_majority(members.voters, up):
        return  # without a majority, no member leads the group
    if not {node_of(member) for member in wanted if member not in voters} <= up:
        assert set(voters) <= set(members.voters), "no member leaves before all new members are there"
    elif has_majority(wanted, up):
        assert is_complete(assigned(wanted), members)


def test_unreachable_members_are_removed_first() -> None:
    members = Members(("n0#0", "n1#1", "n2#2", "n3#3"))
    step = next_step(["n0#0", "n3#3"], members, "n0#0", (), {"n0", "n1", "n3"}, ())
    assert step == Members(("n0#0", "n1#1", "n3#3"))


def test_a_leader_that_is_to_go_hands_over_last() -> None:
    members = Members(("n0#0", "n1#1"))
    both = {"n0", "n1"}
    assert next_step(["n1#1"], members, "n0#0", (), both, both) == "n1#1"
    assert next_step(["n1#1"], members, "n0#0", (), both, {"n0"}) is None
    assert next_step(["n1#1"], members, "n1#1", (), both, both) == Members(("n1#1",))


def test_report_has_only_states_unknown_to_metadata() -> None:
    both = Members(("n1#1", "n0#0"))
    assert report_of(assigned(["n0#0", "n1#1"]), both) is True
    assert report_of(assigned(["n0#0", "n1#1"], settled=1), both) is None, "it knows"
    assert report_of(assigned(["n0#0", "n1#1", "n2#2"]), both) is None, "n2 is not a member yet"
    assert report_of(assigned(["n0#0", "n1#1", "n2#2"], former=("n3#3",)), both) is False, "n3 is not a member"
    learns = Members(("n0#0",), ("n1#1",))
    assert report_of(assigned(["n0#0", "n1#1"], former=("n3#3",)), learns) is False, "a learner has no vote yet"
    assert report_of(assigned(["n0#0"], former=("n1#1",)), learns) is None, "a learner is a member"
