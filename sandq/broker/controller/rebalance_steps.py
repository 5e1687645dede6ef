"""What comes next of a group that is to have other members (pure).

a learner that is not wanted goes
who is wanted and not there comes, as a learner; gets the log, or a snapshot; and votes once it has all of it
only then who is not wanted goes, those first that cannot be reached; the leader last: it hands over before
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
    """The next configuration of a group that `own` leads; or the member that is to lead it instead; or None, when
    nothing can be done now, or need not. `up`: nodes that can be reached; `able`: those that may lead."""
    voters, learners = members
    extra = [learner for learner in learners if learner not in wanted]
    if extra:
        return Members(voters, tuple([learner for learner in learners if learner != extra[0]]))
    # Who cannot be reached gets no vote, and nobody goes whose vote is needed then: it might leave no majority.
    ready = [learner for learner in learners if learner in caught_up and node_of(learner) in up]
    if ready:
        return Members((*voters, ready[0]), tuple([learner for learner in learners if learner != ready[0]]))
    new = [member for member in wanted if member not in voters and member not in learners and node_of(member) in up]
    if new:
        return Members(voters, (*learners, new[0]))
    if not set(wanted) <= set(voters):
        return None
    going = sorted([v for v in voters if v not in wanted and v != own], key=lambda voter: node_of(voter) in up)
    if going:
        rest = tuple([voter for voter in voters if voter != going[0]])
        return Members(rest, learners) if has_majority(rest, up) else None
    if own not in wanted:
        return next((member for member in wanted if node_of(member) in able), None)
    return None


def is_whole(wanted: Partition, members: Members) -> bool:
    """All whom it wants vote, and nobody else takes part."""
    if members.learners:
        return False
    # Most often they stand in the same order, and this is looked at often.
    return members.voters == wanted.members or sorted(members.voters) == sorted(wanted.members)


def news(wanted: Partition, members: Members) -> bool | None:
    """What metadata is to be told of a committed configuration: True, the group is what is wanted; False, nobody takes
    part any more who is not wanted; None, nothing that it does not know."""
    if is_whole(wanted, members):
        return True if wanted.moving else None
    is_rid = {*members.voters, *members.learners} <= set(wanted.members)
    return False if wanted.former and is_rid else None
