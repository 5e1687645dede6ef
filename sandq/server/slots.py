"""Places for what may be many at once: so many in all, and three quarters of them for one source.

So one client alone never takes what others need. A source is an address, of IPv6 a network (`sandq/model/sources.py`).
Who is behind a proxy has the proxy's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Slots:
    """`limit`: in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit - limit // 4
        """Of one source."""
        self.used = 0
        self._by_source: Counter[str] = Counter()

    def has_share(self, source: str) -> bool:
        """Whether a source has not all that one source may have."""
        return self._by_source[source] < self.share

    def take(self, source: str) -> bool:
        """Take a place, if there is one."""
        if self.used >= self.limit or not self.has_share(source):
            return False
        self.add(source)
        return True

    def add(self, source: str) -> None:
        """Take a place in any case."""
        self.used += 1
        self._by_source[source] += 1

    def give(self, source: str) -> None:
        """Give a place back that was taken."""
        self.used -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class OpenConnections(Generic[C]):
    """The connections of a server, with a place for each.

    When there is no place left, the connection goes that has been without a request for longest. When all have
    requests, a few more are taken, of spare places.
    """

    def __init__(self, limit: int, spare: int) -> None:
        self._slots = Slots(limit)
        self._spare = Slots(spare)
        self._open: dict[C, tuple[Slots, str]] = {}
        """With the place and the source of each."""
        self._idle: OrderedDict[C, None] = OrderedDict()
        """Those that have no request; first who has had none for longest."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(self._open)

    def add(self, connection: C, source: str) -> tuple[bool, C | None]:
        """Find a place for a connection, that has no request yet: whether there is one, and which other one has lost
        its place for that, and is to be ended."""
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
        """Whether it is one too many, for which little is done."""
        return self._open[connection][0] is self._spare

    def set_idle(self, connection: C, is_idle: bool) -> None:
        """A request of it begins, or all of its answer is out."""
        self._idle.pop(connection, None)
        if is_idle and connection in self._open:
            self._idle[connection] = None

    def remove(self, connection: C) -> None:
        """It has ended; nothing if it has no place any more."""
        self._idle.pop(connection, None)
        if (slot := self._open.pop(connection, None)) is not None:
            slot[0].give(slot[1])

    def _give_up_idle(self, slots: Slots, source: str) -> C | None:
        """The one that has been without a request for longest, if there is one; of a source that has its share one
        of its own."""
        own = not slots.has_share(source)
        for connection in self._idle:
            where, of = self._open[connection]
            if where is slots and (of == source or not own):
                self.remove(connection)
                return connection
        return None
