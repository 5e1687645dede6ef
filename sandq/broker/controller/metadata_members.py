"""Choose the learners and voters of the metadata group, one step at a time. This module does no I/O.

- Every registered node becomes a learner. A learner that should vote becomes a voter when it has the whole log.
- A learner whose node can leave (`ClusterController._is_leaving`) leaves the group.
- After these steps, surplus voters leave, unreachable voters first. The leader leaves last, after a hand-over.
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
    """Return the next configuration of the metadata group, which `own` leads.

    If another node must lead first, return the set of nodes of which one must lead. If nothing can or must be done now,
    return None.

    `caught_up`: learners that have the whole log. `up`: reachable nodes. `known`: linked nodes that have their
    registered store. `lost`: nodes that have failed for long. `leaving`: nodes of learners that can leave the group."""
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
    # Surplus voters leave only after every wanted, working node has a vote.
    going = [voter for voter in voters if node_of(voter) in nodes and node_of(voter) not in wanted]
    if not going or not wanted.difference(lost) <= voting:
        return None
    others = sorted([voter for voter in going if voter != own], key=lambda voter: node_of(voter) in up)
    if not others:
        return wanted.intersection(up)
    rest = tuple([voter for voter in voters if voter != others[0]])
    return Members(rest, learners) if has_majority(rest, up) else None  # a majority must stay reachable
