"""Assign slots to connections that are in their handshake at the peer port, and to streams at the gossip port.

An attacker may open connections and send nothing. Such connections must not lock out a node of the cluster. So each
source address has few slots, and some slots are reserved for the sources of known peers. If no slot is free, the oldest
connection is closed. A handshake takes milliseconds, so the oldest connection is probably idle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from sandq.model.sources import source_of

SLOTS: Final = 32
"""Number of slots for connections from unknown sources."""
KNOWN_SLOTS: Final = 32
"""Number of extra slots for connections from the sources of known peers."""
SOURCE_SLOTS: Final = 8
"""Maximum number of slots for one unknown source."""


class Slot:
    """The slot of one connection."""

    def __init__(self, source: str, *, is_known: bool = False) -> None:
        self.source = source
        self.is_known = is_known
        """True if the source belongs to a known peer."""
        self.is_lost = False
        """True if a later connection has taken the slot."""
        self._scope = trio.CancelScope()

    def lose(self) -> None:
        """Take the slot away: cancel the block that runs in `held`."""
        self.is_lost = True
        self._scope.cancel()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run the block in a cancel scope. If the slot is lost, the block ends without an error."""
        with self._scope:
            yield


class PeerSlots:
    """The slots of a port. `known()` returns the sources of known peers."""

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._unknown: list[Slot] = []
        self._peers: list[Slot] = []
        """Slots in use by known peers, oldest first. `_unknown`: slots in use by unknown sources."""

    @contextmanager
    def slot(self, host: str) -> Iterator[Slot]:
        """Hold a slot for a connection from the IP address `host` while the block runs.

        If a later connection takes the slot, the block is cancelled, and ends without an error."""
        source = source_of(host)
        slot = Slot(source, is_known=source in self._known())
        taken = self._peers if slot.is_known else self._unknown
        self._evict(taken, source)
        taken.append(slot)
        try:
            with slot.held():
                yield slot
        finally:
            if slot in taken:
                taken.remove(slot)

    def _evict(self, taken: list[Slot], source: str) -> None:
        """Ensure that a slot for `source` is free in `taken`, which is `_unknown` or `_peers`.

        If an unknown source uses all its slots, take its oldest slot. Otherwise, if `taken` is full, take the oldest
        slot in `taken`."""
        same = [slot for slot in taken if slot.source == source]
        if taken is self._unknown and len(same) >= SOURCE_SLOTS:
            self._lose(taken, same[0])
        elif len(taken) >= (KNOWN_SLOTS if taken is self._peers else SLOTS):
            self._lose(taken, taken[0])

    @staticmethod
    def _lose(taken: list[Slot], slot: Slot) -> None:
        """Take a slot away from its connection."""
        taken.remove(slot)
        slot.lose()
