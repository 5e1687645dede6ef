"""What a leader's log keeps for a member that is sent a snapshot: the entries behind it, within a budget.

Without them the member would need another snapshot as soon as it has this one. Without a budget a leader that takes
writes faster than a snapshot gets through would keep all of them, in memory and on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandq.raft import GroupJournal

PIN_BYTES: Final = 64 << 20
"""Commands that the log keeps for the first attempt at a snapshot ..."""
PIN_BYTES_MOST: Final = 256 << 20
"""... and at most: each attempt that the writes outrun is followed by one with twice as much."""


def pin_bytes(outrun: int) -> int:
    """The budget of a snapshot, in bytes, after so many that were outrun."""
    return min(PIN_BYTES << outrun, PIN_BYTES_MOST)


class LogPin:
    """One member's claim upon the log of its leader, from the snapshot's index on."""

    def __init__(self, index: int, budget_bytes: int, on_lost: Callable[[], None]) -> None:
        """Keep the log from `index` on. `on_lost`: called once, when it has grown beyond the budget: what is under way
        is of no use any more."""
        self.index = index
        self.is_lost = False
        self._budget_bytes = budget_bytes
        self._on_lost = on_lost

    def needed_from(self, journal: GroupJournal, match_index: int) -> int | None:
        """The first entry that the log must keep; None once the pin is lost. `match_index`: what the member has got
        from the log, which need not be kept for it."""
        needed = max(self.index, match_index)
        if not self.is_lost and journal.bytes_above(needed) > self._budget_bytes:
            self.lose()
        return None if self.is_lost else needed

    def lose(self) -> None:
        """Keep nothing any more."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()
