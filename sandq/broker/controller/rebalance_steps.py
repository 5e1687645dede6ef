"""Choose the next step of a group that should get other members. This module does no I/O.

- A learner that is not wanted leaves.
- A wanted node that is missing is added as a learner. This learner gets the log or a snapshot, and then a vote.
- After these steps, unwanted voters leave, unreachable voters first. The leader leaves last, after a hand-over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandq.metadata.records import Partition
from sandq.model.members import has_majority, node_of
from sandq.raft import Members


def next_step(
    wanted: Sequence[str],
    members: Members,
    own: str,
    caught_up: Collection[str],
    up: Collection[str],
    able: Collection[str],
) -> Members | str | None:
    """Return the next configuration of a group that the member `own` leads.

    If another member must lead first, return such a member. If nothing can or must be done now, return None. `wanted`:
    members that the assignment names. `caught_up`: learners that have the whole log. `up`: reachable nodes. `able`:
    nodes that may lead."""
    voters, learners = members
    extra = [learner for learner in learners if learner not in wanted]
    if extra:
        return Members(voters, tuple([learner for learner in learners if learner != extra[0]]))
    # An unreachable learner gets no vote: the group could lose its majority.
    ready = [learner for learner in learners if learner in caught_up and node_of(learner) in up]
    if ready:
        return Members((*voters, ready[0]), tuple([learner for learner in learners if learner != ready[0]]))
    new = [member for member in wanted if member not in voters and member not in learners and node_of(member) in up]
    if new:
        return Members(voters, (*learners, new[0]))
    if not set(wanted) <= set(voters):
        return None
    # All wanted members vote now, so unwanted voters may leave. Unreachable voters are first.
    going = sorted([v for v in voters if v not in wanted and v != own], key=lambda voter: node_of(voter) in up)
    if going:
        rest = tuple([voter for voter in voters if voter != going[0]])
        return Members(rest, learners) if has_majority(rest, up) else None
    if own not in wanted:
        return next((member for member in wanted if node_of(member) in able), None)
    return None


def is_complete(wanted: Partition, members: Members) -> bool:
    """Return whether the members are exactly the wanted members, and all of them vote."""
    if members.learners:
        return False
    # Compare without sorting first: the order is usually the same, and this function runs often.
    return members.voters == wanted.members or sorted(members.voters) == sorted(wanted.members)


def report_of(wanted: Partition, members: Members) -> bool | None:
    """Return the field `whole` of the report about a committed configuration (see `metadata.commands.Settle`).

    True: the group now has exactly the members of its new assignment. False: former members have left, but the
    assignment is not reached yet. None: there is nothing new to report."""
    if is_complete(wanted, members):
        return True if wanted.moving else None
    have_left = {*members.voters, *members.learners} <= set(wanted.members)
    return False if wanted.former and have_left else None
