"""What comes over gossip's streams: places, memory and turns of the loop, bounded before anybody has proved anything.

A stream proves that its sender has a key with its last byte, and without keys never. So places are shared as at the
peer port (`door`), all streams have their memory from one room, in which the oldest of strangers gives way, and what
takes longer than a first turn is done for one stream of strangers at a time, and one of members: so a large state takes
more memory than its bytes one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from sandq.broker.event_loop import Turn
from sandq.broker.peers.door import Door, Slot
from sandq.gossip.steps import Steps
from sandq.model.errors import ConnectionLost

FREE_BYTES: Final = 64 << 10
"""Each stream has so many beside the room: the states of a thousand members, and every ping."""
ROOM_BYTES: Final = 32 << 20
"""All streams together have so many more."""

T = TypeVar("T")


class Intake:
    """`known()`: the sources where members are. `on_turn` is called after each turn of what takes long: what is new is
    to be told."""

    def __init__(self, known: Callable[[], Collection[str]], on_turn: Callable[[], None]) -> None:
        self._door = Door(known)
        self._on_turn = on_turn
        self._held: dict[Slot, int] = {}
        """Stream -> bytes of the room, the oldest stream first."""
        self._busy_with_members = trio.Lock()
        self._busy_with_strangers = trio.Lock()

    @contextmanager
    def asked_by(self, host: str) -> Iterator[Slot]:
        """Have a place for a stream that somebody opened; what runs in it ends, quietly, when it is lost to others."""
        with self._door.slot(host) as slot, self._noted(slot):
            yield slot

    @contextmanager
    def asked(self) -> Iterator[Slot]:
        """Have a place for a stream that this member opens to another one. ConnectionLost when it gives way."""
        slot = Slot("", is_known=True)
        with slot.held(), self._noted(slot):
            yield slot
        if slot.is_lost:
            raise ConnectionLost("others have sent so much gossip that there was no room for an answer")

    @contextmanager
    def _noted(self, slot: Slot) -> Iterator[None]:
        self._held[slot] = 0
        try:
            yield
        finally:
            del self._held[slot]

    @property
    def held_bytes(self) -> int:
        """Bytes of the room that are held."""
        return sum(self._held.values())

    def hold(self, slot: Slot, size: int) -> None:
        """Note that a stream holds so many bytes now. When there is no room for them the oldest gives way that holds
        any, strangers first: who takes long has not much to say, or sends it slowly."""
        self._held[slot] = 0 if slot.is_lost else max(0, size - FREE_BYTES)
        while self.held_bytes > ROOM_BYTES:
            holding = [one for one, held in self._held.items() if held]
            oldest = next((one for one in holding if not one.is_known), holding[0])
            self._held[oldest] = 0
            oldest.lose()

    async def do(self, slot: Slot, steps: Steps[T]) -> T:
        """Return what comes of the steps. What is more than a first turn stands in line for further ones."""
        turn = Turn()
        ended = _go_on(steps, turn)
        if ended is None:
            async with self._busy_with_members if slot.is_known else self._busy_with_strangers:
                while ended is None:
                    self._on_turn()
                    await turn.end()
                    ended = _go_on(steps, turn)
        return ended[0]


def _go_on(steps: Steps[T], turn: Turn) -> tuple[T] | None:
    """Do the steps of a turn; what comes of all of them, if they have ended."""
    while turn.left > 0:
        try:
            turn.left -= next(steps)
        except StopIteration as end:
            return (end.value,)
    return None
