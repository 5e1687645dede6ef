"""Choose who learns and who votes in the metadata group, one step at a time (pure).

every registered node comes, as a learner; whoever is to vote does so once it has all of the log
a learner that is to be forgotten goes
only then a voter goes that is not to vote, those first that cannot be reached; the leader last: it hands over before
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sandq.metadata.planning import next_voters
from sandq.metadata.records import REMOVING, NodeRecord
from sandq.model.members import has_majority, member_id, node_of, own_member
from sandq.raft import Members

VOTERS_MOST: Final = 5


def next_members(
    nodes: Mapping[str, NodeRecord],
    members: Members,
    own: str,
    caught_up: Collection[str],
    up: Collection[str],
    known: Sequence[str],
    lost: Collection[str],
    leaving: Collection[str],
) -> Members | set[str] | None:
    """The next configuration of the metadata group, which `own` leads; or the nodes one of which is to lead it instead;
    or None, when nothing can be done now, or need not.

    `caught_up`: the learners that have all of the log. `up`: nodes that can be reached; `known`: those among them that
    have the store that is registered. `lost`: nodes that have failed for long. `leaving`: nodes to be forgotten."""
    voters, learners = members
    voting = {node_of(voter) for voter in voters}
    wanted = next_voters(nodes, voting, VOTERS_MOST, lost)
    for node in known:
        record = nodes[node]
        if record.standing != REMOVING and own_member(node, (*voters, *learners)) is None:
            return Members(voters, (*learners, member_id(node, record.incarnation)))
    for learner in learners:
        node, rest = node_of(learner), tuple([other for other in learners if other != learner])
        if node in wanted and learner in caught_up and node in known:
            return Members((*voters, learner), rest)
        if node in leaving:
            return Members(voters, rest)
    going = [voter for voter in voters if node_of(voter) in nodes and node_of(voter) not in wanted]
    if not going or not wanted.difference(lost) <= voting:
        return None
    others = sorted([voter for voter in going if voter != own], key=lambda voter: node_of(voter) in up)
    if not others:
        return wanted.intersection(up)
    rest = tuple([voter for voter in voters if voter != others[0]])
    return Members(rest, learners) if has_majority(rest, up) else None  # else nothing could be changed any more
