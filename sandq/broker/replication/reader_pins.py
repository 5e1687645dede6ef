"""What a log keeps for those who read it from outside, as backups do: the entries behind each one's place, within a
budget, and for as long as somebody asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandq.model.errors import Overloaded
from sandq.raft import GroupJournal

READER_BYTES: Final = 64 << 20
"""Commands that the log of a group keeps for readers, at most. All logs of a node have a share of its memory
(`NodeLog`); beyond that those with the most to keep are cut, whoever reads them."""
READERS_MOST: Final = 4
"""Of one group."""
IDLE_S: Final = 300.0
"""A reader of whom nothing was heard for so long has no claim any more."""


@dataclass(slots=True)
class _Pin:
    index: int
    heard_s: float


class ReaderPins:
    """The claims upon the log of one group, by the names of the readers. On the event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def put(self, reader: str, index: int) -> bool:
        """Keep the entries behind `index`, and no others, for a reader from now on; whether that is another claim than
        there was. Raises Overloaded: there are as many readers as there may be."""
        self._expire()
        pin = self._pins.get(reader)
        if pin is None and len(self._pins) >= READERS_MOST:
            raise Overloaded(f"{READERS_MOST} others read the log of this partition already, and no more may at a time")
        self._pins[reader] = _Pin(index, self._now_s())
        return pin is None or pin.index != index

    def needed_from(self, journal: GroupJournal) -> int | None:
        """The first entry that the log must keep; None: none. Claims beyond the budget are lost."""
        self._expire()
        for reader, pin in list(self._pins.items()):
            # To look at each entry costs something, and there are rarely as many.
            if journal.size_bytes > READER_BYTES and journal.bytes_above(pin.index) > READER_BYTES:
                del self._pins[reader]
        return min([pin.index for pin in self._pins.values()], default=None)

    def lose(self) -> None:
        """Keep nothing any more."""
        self._pins.clear()

    def _expire(self) -> None:
        if self._pins:
            idle_since_s = self._now_s() - IDLE_S
            self._pins = {reader: pin for reader, pin in self._pins.items() if pin.heard_s >= idle_since_s}
