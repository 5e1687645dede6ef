"""The list of members that a backend keeps, and those who read its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import trio

from sandq.model.membership import Change, Member


class Roster:
    """On the loop only."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._sorted: Mapping[str, Member] | None = None
        self._changed = trio.Event()

    def members(self) -> Mapping[str, Member]:
        """Name -> member, sorted by name; a copy that stands still."""
        if self._sorted is None:
            self._sorted = MappingProxyType(dict(sorted(self._members.items())))
        return self._sorted

    def put(self, member: Member) -> None:
        """A member is new or another one."""
        if self._members.get(member.name) != member:
            self._members[member.name] = member
            self._note()

    def remove(self, name: str) -> None:
        """A member is not listed any more; nothing when it was not."""
        if self._members.pop(name, None) is not None:
            self._note()

    def changes(self) -> RosterChanges:
        """See `membership.Changes`."""
        return RosterChanges(self)

    async def wait(self) -> None:
        """Until the next change."""
        await self._changed.wait()

    def _note(self) -> None:
        self._sorted = None
        self._changed.set()
        self._changed = trio.Event()


class RosterChanges:
    """Reads a roster's changes; each batch is sorted by name.

    It compares what it told with what is now. So the slowest of readers misses no goodbye, and one that is dropped
    leaves nothing behind in the roster.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._told: Mapping[str, Member] | None = None

    def __aiter__(self) -> RosterChanges:
        return self

    async def __anext__(self) -> Sequence[Change]:
        await trio.lowlevel.checkpoint()
        if self._told is None:
            self._told = self._roster.members()
            return [Change(member) for member in self._told.values()]
        while not (changes := self._since(self._told)):
            await self._roster.wait()
        self._told = self._roster.members()
        return changes

    def _since(self, told: Mapping[str, Member]) -> Sequence[Change]:
        now = self._roster.members()
        if now is told:
            return []
        changes = [Change(member) for name, member in now.items() if told.get(name) != member]
        changes += [Change(member, gone=True) for name, member in told.items() if name not in now]
        return sorted(changes, key=lambda change: change.member.name)
