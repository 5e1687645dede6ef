"""The list of members that a backend keeps, and the readers of its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import trio

from sandq.model.membership import Change, Member


class Roster:
    """The current members. Use it on the event loop only."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._sorted: Mapping[str, Member] | None = None
        self._changed = trio.Event()

    def members(self) -> Mapping[str, Member]:
        """Return the members by name, sorted; an immutable snapshot."""
        if self._sorted is None:
            self._sorted = MappingProxyType(dict(sorted(self._members.items())))
        return self._sorted

    def put(self, member: Member) -> None:
        """Add or change a member."""
        if self._members.get(member.name) != member:
            self._members[member.name] = member
            self._note()

    def remove(self, name: str) -> None:
        """Remove a member, if it is listed."""
        if self._members.pop(name, None) is not None:
            self._note()

    def changes(self) -> RosterChanges:
        """Return an iterator of changes; see `membership.Changes`."""
        return RosterChanges(self)

    async def wait(self) -> None:
        """Wait until the next change."""
        await self._changed.wait()

    def _note(self) -> None:
        self._sorted = None
        self._changed.set()
        self._changed = trio.Event()


class RosterChanges:
    """An iterator of a roster's changes; each batch is sorted by name.

    It compares the members that it last returned with the current ones. So a slow reader misses no departure, and an
    abandoned reader leaves nothing behind in the roster.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: Mapping[str, Member] | None = None

    def __aiter__(self) -> RosterChanges:
        return self

    async def __anext__(self) -> Sequence[Change]:
        await trio.lowlevel.checkpoint()
        if self._last is None:
            self._last = self._roster.members()
            return [Change(member) for member in self._last.values()]
        while not (changes := self._since(self._last)):
            await self._roster.wait()
        self._last = self._roster.members()
        return changes

    def _since(self, last: Mapping[str, Member]) -> Sequence[Change]:
        now = self._roster.members()
        if now is last:
            return []
        changes = [Change(member) for name, member in now.items() if last.get(name) != member]
        changes += [Change(member, gone=True) for name, member in last.items() if name not in now]
        return sorted(changes, key=lambda change: change.member.name)
