"""Names of the members of Raft groups: `node id#incarnation`.

The incarnation is minted with each replica: a node that lost its disk returns under its old name, but as nobody that
has a vote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def member_id(node_id: str, incarnation: int) -> str:
    return f"{node_id}#{incarnation}"


def node_of(member: str) -> str:
    return member.rpartition("#")[0]


def incarnation_of(member: str) -> int:
    return int(member.rpartition("#")[2])


def own_member(node_id: str, members: Iterable[str]) -> str | None:
    """The member that lives on a node."""
    return next((member for member in members if node_of(member) == node_id), None)


def has_majority(voters: Collection[str], up: Collection[str]) -> bool:
    """Whether most of these members live on nodes that can be reached (`up`)."""
    return 2 * sum(node_of(voter) in up for voter in voters) > len(voters)
