"""Names of the members of Raft groups: `node id#incarnation`.

Each replica gets a new incarnation. So a node that lost its disk returns under its old name, but as a new member
without a vote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def member_id(node_id: str, incarnation: int) -> str:
    """Return the id of a node's member with this incarnation."""
    return f"{node_id}#{incarnation}"


def node_of(member: str) -> str:
    """Return the node of a member."""
    return member.rpartition("#")[0]


def incarnation_of(member: str) -> int:
    """Return the incarnation of a member."""
    return int(member.rpartition("#")[2])


def own_member(node_id: str, members: Iterable[str]) -> str | None:
    """Return the member that is on a node; None if there is none."""
    return next((member for member in members if node_of(member) == node_id), None)


def has_majority(voters: Collection[str], up: Collection[str]) -> bool:
    """Return whether a majority of these voters is on reachable nodes (`up`)."""
    return 2 * sum(node_of(voter) in up for voter in voters) > len(voters)
