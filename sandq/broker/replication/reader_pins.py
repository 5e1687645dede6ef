"""Keep the part of a log that external readers, such as backups, have not read yet.

Each reader has a claim on the log from its position on. The claim is lost if it exceeds its budget, or if the reader
does not renew it for `IDLE_S` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandq.model.errors import Overloaded
from sandq.raft import GroupJournal

READER_BYTES: Final = 64 << 20
"""Budget of a reader: maximum bytes of commands that the log of a group keeps for it.

All logs of a node share a part of its memory (`NodeLog`). If the logs exceed that part, the largest logs are cut, even
if a reader needs them."""
READERS_MOST: Final = 4
"""Maximum number of readers of one group."""
IDLE_S: Final = 300.0
"""Seconds without a request after which a reader loses its claim."""


@dataclass(slots=True)
class _Pin:
    index: int
    heard_s: float


class ReaderPins:
    """The claims on the log of one group, by name of the reader. Used only on the event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def put(self, reader: str, index: int) -> bool:
        """Keep the entries after `index` for a reader, and release earlier entries. Return whether the reader's claim
        changed.

        Raise Overloaded if there are `READERS_MOST` other readers."""
        self._expire()
        pin = self._pins.get(reader)
        if pin is None and len(self._pins) >= READERS_MOST:
            raise Overloaded(f"{READERS_MOST} others read the log of this partition, the maximum; ask again later")
        self._pins[reader] = _Pin(index, self._now_s())
        return pin is None or pin.index != index

    def needed_from(self, journal: GroupJournal) -> int | None:
        """Drop the claims that exceed the budget. Return the index of the first entry that the log must keep.

        None if no reader has a claim."""
        self._expire()
        for reader, pin in list(self._pins.items()):
            # Check the size of the whole log first, as `bytes_above` visits each entry.
            if journal.size_bytes > READER_BYTES and journal.bytes_above(pin.index) > READER_BYTES:
                del self._pins[reader]
        return min([pin.index for pin in self._pins.values()], default=None)

    def lose(self) -> None:
        """Give up all claims."""
        self._pins.clear()

    def _expire(self) -> None:
        if self._pins:
            idle_since_s = self._now_s() - IDLE_S
            self._pins = {reader: pin for reader, pin in self._pins.items() if pin.heard_s >= idle_since_s}
