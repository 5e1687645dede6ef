"""Slots that limit how many of something may be open at once; one source may take three quarters of them.

So a single client can never take all slots. A source is an IPv4 address or an IPv6 network (`sandq/model/sources.py`).
Clients behind a proxy share the proxy's address.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Slots:
    """A limited number of slots, counted by source. `limit`: the number of all slots."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit - limit // 4
        """Slots that one source may take."""
        self.used = 0
        self._by_source: Counter[str] = Counter()

    def has_share(self, source: str) -> bool:
        """Return whether a source has fewer slots than one source may have."""
        return self._by_source[source] < self.share

    def take(self, source: str) -> bool:
        """Take a slot if one is free for this source. Return whether that succeeded."""
        if self.used >= self.limit or not self.has_share(source):
            return False
        self.add(source)
        return True

    def add(self, source: str) -> None:
        """Take a slot, even if none is free."""
        self.used += 1
        self._by_source[source] += 1

    def give(self, source: str) -> None:
        """Release a slot that was taken."""
        self.used -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class OpenConnections(Generic[C]):
    """The open connections of a server; each has a slot.

    If no slot is free, a new connection takes that of the connection that has been idle for longest. If no connection
    is idle, the new one takes one of a few spare slots.
    """

    def __init__(self, limit: int, spare: int) -> None:
        self._slots = Slots(limit)
        self._spare = Slots(spare)
        self._open: dict[C, tuple[Slots, str]] = {}
        """By connection: the kind of slots from which its slot comes (regular or spare), and its source."""
        self._idle: OrderedDict[C, None] = OrderedDict()
        """Connections without an open request; the one that has been idle for longest comes first."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(self._open)

    def add(self, connection: C, source: str) -> tuple[bool, C | None]:
        """Find a slot for a new connection, which is idle at first.

        Return (granted, displaced). `displaced` is the idle connection that lost its slot, or None; the caller must
        close it."""
        for slots in (self._slots, self._spare):
            given_up = None
            if not slots.take(source):
                given_up = self._give_up_idle(slots, source)
                if given_up is None:
                    continue
                slots.add(source)
            self._open[connection] = slots, source
            self._idle[connection] = None
            return True, given_up
        return False, None

    def is_spare(self, connection: C) -> bool:
        """Return whether a connection has a spare slot: the server is full, and serves it minimally."""
        return self._open[connection][0] is self._spare

    def set_idle(self, connection: C, is_idle: bool) -> None:
        """Note that a request of the connection begins, or that its whole response was sent."""
        self._idle.pop(connection, None)
        if is_idle and connection in self._open:
            self._idle[connection] = None

    def remove(self, connection: C) -> None:
        """Release the slot of a connection that has ended. Do nothing if the connection has lost its slot."""
        self._idle.pop(connection, None)
        if (slot := self._open.pop(connection, None)) is not None:
            slot[0].give(slot[1])

    def _give_up_idle(self, slots: Slots, source: str) -> C | None:
        """Take the slot of the connection that has been idle for longest, and return that connection; None if there is
        none.

        A source that has used up its share can only displace its own connections."""
        own = not slots.has_share(source)
        for connection in self._idle:
            where, of = self._open[connection]
            if where is slots and (of == source or not own):
                self.remove(connection)
                return connection
        return None
