"""Limit the slots, memory and CPU time of gossip streams, because any host can open one.

Only the last byte of a stream proves that its sender has a key, and without keys nothing proves it. So slots are
shared as at the peer port (see `PeerSlots`). All streams share a memory budget; if it is exhausted, the oldest stream
of an unknown source is dropped. Work beyond a first time slice is done for one stream of unknown sources and one of
members at a time: a decoded state takes more memory than its bytes, and several large ones could exhaust the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from sandq.broker.event_loop import TimeSlice
from sandq.broker.peers.peer_slots import PeerSlots, Slot
from sandq.gossip.steps import Steps
from sandq.model.errors import ConnectionLost

FREE_BYTES: Final = 64 << 10
"""Memory of each stream outside of the shared budget: enough for the states of a thousand members, and for pings."""
SHARED_BYTES: Final = 32 << 20
"""The shared memory budget of all streams."""

T = TypeVar("T")


class Intake:
    """The limits of gossip streams.

    `known()` returns the sources of members. `on_slice` is called after each time slice of long work, to publish
    changes.
    """

    def __init__(self, known: Callable[[], Collection[str]], on_slice: Callable[[], None]) -> None:
        self._slots = PeerSlots(known)
        self._on_slice = on_slice
        self._held: dict[Slot, int] = {}
        """Bytes of the shared budget by stream, the oldest stream first."""
        self._members_lock = trio.Lock()
        """Held during long work for a stream of a member."""
        self._others_lock = trio.Lock()
        """Held during long work for a stream of an unknown source."""

    @contextmanager
    def incoming(self, host: str) -> Iterator[Slot]:
        """Take a slot for an incoming stream. If the slot is lost to another stream, the block ends quietly."""
        with self._slots.slot(host) as slot, self._tracked(slot):
            yield slot

    @contextmanager
    def outgoing(self) -> Iterator[Slot]:
        """Take a slot for an outgoing stream. Raises ConnectionLost if the stream is dropped for lack of memory."""
        slot = Slot("", is_known=True)
        with slot.held(), self._tracked(slot):
            yield slot
        if slot.is_lost:
            raise ConnectionLost("other gossip streams use all of the memory budget, so the reply was dropped")

    @contextmanager
    def _tracked(self, slot: Slot) -> Iterator[None]:
        self._held[slot] = 0
        try:
            yield
        finally:
            del self._held[slot]

    @property
    def held_bytes(self) -> int:
        """Bytes of the shared budget that are in use."""
        return sum(self._held.values())

    def hold(self, slot: Slot, size: int) -> None:
        """Set the memory that a stream uses. If the budget is exhausted, drop the oldest stream that uses a part of the
        budget.

        Streams of unknown sources are dropped first. An old stream has little to send, or sends it slowly.
        """
        self._held[slot] = 0 if slot.is_lost else max(0, size - FREE_BYTES)
        while self.held_bytes > SHARED_BYTES:
            holding = [one for one, held in self._held.items() if held]
            oldest = next((one for one in holding if not one.is_known), holding[0])
            self._held[oldest] = 0
            oldest.lose()

    async def do(self, slot: Slot, steps: Steps[T]) -> T:
        """Run the steps and return their result. After a first time slice, long work queues for further ones."""
        time_slice = TimeSlice()
        ended = _go_on(steps, time_slice)
        if ended is None:
            async with self._members_lock if slot.is_known else self._others_lock:
                while ended is None:
                    self._on_slice()
                    await time_slice.end()
                    ended = _go_on(steps, time_slice)
        return ended[0]


def _go_on(steps: Steps[T], time_slice: TimeSlice) -> tuple[T] | None:
    """Run the steps of a time slice; return the result if all steps have ended."""
    while time_slice.left > 0:
        try:
            time_slice.left -= next(steps)
        except StopIteration as end:
            return (end.value,)
    return None
