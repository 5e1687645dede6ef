"""Who takes part in a group: voters and learners, as `node id#incarnation`.

The incarnation is minted with each replica: a node that lost its disk returns under its old name, but as nobody that
has a vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from sandq.model.errors import Corruption


class Members(NamedTuple):
    """The configuration of a group. Learners get the log and have no vote."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def encode(self) -> bytes:
        body: bytes = msgpack.packb([self.voters, self.learners])
        return body

    @classmethod
    def decode(cls, data: bytes) -> Members:
        """Raises Corruption."""
        try:
            voters, learners = msgpack.unpackb(data)
            members = cls(tuple(voters), tuple(learners))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Corruption(f"a membership entry cannot be read: {error!r}") from error
        if not all(isinstance(member, str) for member in (*members.voters, *members.learners)):
            raise Corruption(f"a membership entry names something that is no member: {members!r}")
        return members


def member_id(node_id: str, incarnation: int) -> str:
    return f"{node_id}#{incarnation}"


def node_of(member: str) -> str:
    return member.rpartition("#")[0]


def incarnation_of(member: str) -> int:
    return int(member.rpartition("#")[2])


def own_member(node_id: str, members: Sequence[str]) -> str | None:
    """The member that lives on a node."""
    return next((member for member in members if node_of(member) == node_id), None)
