"""Places at the peer port for connections that are not introduced yet, and at the gossip port for streams.

Who takes a place and says nothing must not keep a node of the cluster out. So places are few for any one source, some
are kept for the sources of known peers, and where there is none left the oldest connection goes: an introduction takes
milliseconds, and whoever holds a place for longer has none to make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from sandq.model.sources import source_of

SLOTS: Final = 32
"""For those that come from anywhere ..."""
KNOWN_SLOTS: Final = 32
"""... and beside these for those that come from where a known peer is."""
SOURCE_SLOTS: Final = 8
"""For those of one source that is no known peer's."""


class Slot:
    """One connection's."""

    def __init__(self, source: str, *, is_known: bool = False) -> None:
        self.source = source
        self.is_known = is_known
        """It is a known peer's."""
        self.is_lost = False
        """A later connection has taken it."""
        self._scope = trio.CancelScope()

    def lose(self) -> None:
        """Cancel whatever the connection waits for."""
        self.is_lost = True
        self._scope.cancel()

    @contextmanager
    def held(self) -> Iterator[None]:
        """What runs in it ends, quietly, when the place is lost."""
        with self._scope:
            yield


class Door:
    """`known()`: the sources where known peers are."""

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._strangers: list[Slot] = []
        self._peers: list[Slot] = []
        """The oldest first."""

    @contextmanager
    def slot(self, host: str) -> Iterator[Slot]:
        """Have a place for a connection from this address: there always is one, which may be lost to a later one."""
        source = source_of(host)
        slot = Slot(source, is_known=source in self._known())
        taken = self._peers if slot.is_known else self._strangers
        self._make_room(taken, source)
        taken.append(slot)
        try:
            with slot.held():
                yield slot
        finally:
            if slot in taken:
                taken.remove(slot)

    def _make_room(self, taken: list[Slot], source: str) -> None:
        same = [slot for slot in taken if slot.source == source]
        if taken is self._strangers and len(same) >= SOURCE_SLOTS:
            self._lose(taken, same[0])
        elif len(taken) >= (KNOWN_SLOTS if taken is self._peers else SLOTS):
            self._lose(taken, taken[0])

    @staticmethod
    def _lose(taken: list[Slot], slot: Slot) -> None:
        taken.remove(slot)
        slot.lose()
