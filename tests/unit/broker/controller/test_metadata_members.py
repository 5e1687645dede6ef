"""Tests of the choice of the next learner and the next voter of the metadata group, case by case."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandq.broker.controller.metadata_members import VOTERS_MOST, next_members
from sandq.metadata.records import DRAINING, IN, REMOVING, NodeRecord
from sandq.model.features import KNOWN
from sandq.model.members import node_of
from sandq.raft import Members


def registry(names: str, **standings: str) -> dict[str, NodeRecord]:
    """Return registered nodes, one per letter of `names`. `standings`: of nodes that are not IN."""
    return {
        name: NodeRecord(
            node_id=name,
            store_uuid=f"store-{name}",
            addresses={},
            zone="x",
            weight=1,
            incarnation=1,
            standing=standings.get(name, IN),
            failed_since_ms=None,
            lowest_level=KNOWN.lowest,
            highest_level=KNOWN.highest,
        )
        for name in names
    }


def members(voters: str, learners: str = "") -> Members:
    return Members(tuple(f"{name}#1" for name in voters), tuple(f"{name}#1" for name in learners))


def after(
    nodes: dict[str, NodeRecord],
    before: Members,
    *,
    own: str = "a#1",
    caught_up: Collection[str] | None = None,
    up: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    lost: Collection[str] = (),
    leaving: Collection[str] = (),
) -> Members | set[str] | None:
    """Return the next step. By default all nodes can be reached and have the complete log."""
    up = sorted(nodes) if up is None else up
    known = [node for node in up if node in nodes] if known is None else known
    return next_members(
        nodes, before, own, before.learners if caught_up is None else caught_up, up, known, lost, leaving
    )


def test_complete_group_needs_no_step() -> None:
    assert after(registry("abc"), members("abc")) is None
    assert after(registry("abcdef"), members("abcde", "f")) is None, "the number of voters is limited"


def test_a_registered_node_comes_as_a_learner_and_votes_once_it_has_the_log() -> None:
    nodes = registry("ab")
    assert after(nodes, members("a")) == members("a", "b")
    assert after(nodes, members("a", "b"), caught_up=()) is None
    assert after(nodes, members("a", "b")) == members("ab")


def test_a_node_with_another_store_than_the_registered_one_gets_nothing() -> None:
    nodes = registry("ab")
    assert after(nodes, members("a"), known=["a"]) is None
    assert after(nodes, members("a", "b"), known=["a"]) is None


def test_a_node_that_is_being_removed_does_not_come() -> None:
    assert after(registry("ab", b=REMOVING), members("a")) is None


def test_forgotten_learner_is_removed() -> None:
    nodes = registry("abc", c=REMOVING)
    assert after(nodes, members("ab", "c")) is None, "the vote of the node is still needed"
    assert after(nodes, members("ab", "c"), leaving={"c"}) == members("ab")
    assert after(registry("ab"), members("ab", "z"), leaving={"z"}) == members("ab"), "the member was never registered"


def test_a_voter_goes_that_is_not_to_vote() -> None:
    nodes = registry("abcd", c=DRAINING, d=DRAINING)
    assert after(nodes, members("abcd")) == members("abd")
    assert after(nodes, members("abcd"), up=["a", "b", "c"]) == members("abc"), "unreachable members are removed first"
    nodes = registry("abc", c=DRAINING)
    assert after(nodes, members("abc"), up=["a", "c"]) is None, "a and b alone could not change the members any more"


def test_voter_leaves_after_its_replacement_votes() -> None:
    nodes = registry("abcdef", b=DRAINING)
    assert after(nodes, members("abcde", "f"), caught_up=()) is None
    assert after(nodes, members("abcde", "f")) == members("abcdef")
    assert after(nodes, members("abcdef")) == members("acdef")


def test_lost_node_is_not_awaited() -> None:
    nodes = registry("abcd", b=DRAINING)
    before = members("abc", "d")
    assert after(nodes, before, up=["a", "b", "c"], caught_up=()) is None
    assert after(nodes, before, up=["a", "b", "c"], caught_up=(), lost={"d"}) == Members(("a#1", "c#1"), ("d#1",))


def test_drained_leader_leaves_last_after_handing_over() -> None:
    nodes = registry("abcd", a=DRAINING, b=DRAINING)
    assert after(nodes, members("abcd")) == members("acd")
    assert after(nodes, members("acd")) == members("acd", "b"), "the old voter remains as a learner"
    assert after(nodes, members("acd", "b")) == {"c", "d"}
    assert after(nodes, members("acd", "b"), up=["a", "b", "d"]) == {"d"}, "the lead goes to a reachable node"


def test_steps_come_to_an_end() -> None:
    nodes = registry("abcdefg", a=DRAINING, c=REMOVING)
    now, own = members("abc"), "a#1"
    for _ in range(40):
        step = after(nodes, now, own=own)
        if isinstance(step, Members):
            assert len(set(step.voters) ^ set(now.voters)) <= 1, "only one member changes at a time"
            now = step
        elif step:
            own = f"{min(step)}#1"
        else:
            break
    assert {node_of(voter) for voter in now.voters} == set("bdefg") and len(now.voters) == VOTERS_MOST
    assert own == "b#1" and now.learners == ("a#1",)
