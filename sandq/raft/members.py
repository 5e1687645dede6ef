"""The members of a group: voters and learners, by name (`model/members.py`)."""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from sandq.model.errors import Corruption


class Members(NamedTuple):
    """The configuration of a group. Learners receive the log, but have no vote."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def encode(self) -> bytes:
        body: bytes = msgpack.packb([self.voters, self.learners])
        return body

    @classmethod
    def decode(cls, data: bytes) -> Members:
        """Decode a configuration. Raise Corruption if `data` is not one."""
        try:
            voters, learners = msgpack.unpackb(data)
            members = cls(tuple(voters), tuple(learners))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Corruption(f"a membership entry cannot be read: {error!r}") from error
        if not all(isinstance(member, str) for member in (*members.voters, *members.learners)):
            raise Corruption(f"a membership entry names something that is no member: {members!r}")
        return members
