"""Keep the part of a leader's log that a member needs after a snapshot, within a budget.

Without these entries, the member would need another snapshot after it has installed this snapshot. Without a budget, a
leader whose writes are faster than the transfer would keep all new entries, in memory and on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandq.raft import GroupJournal

PIN_BYTES: Final = 64 << 20
"""Budget of the first snapshot, in bytes of commands."""
PIN_BYTES_MOST: Final = 256 << 20
"""Maximum budget of a snapshot, in bytes of commands. Each failed attempt doubles the budget up to this."""


def pin_bytes(outrun: int) -> int:
    """Return the budget of a snapshot, in bytes, after `outrun` attempts that exceeded theirs."""
    return min(PIN_BYTES << outrun, PIN_BYTES_MOST)


class LogPin:
    """One member's claim on the log of its leader, from the index of a snapshot on."""

    def __init__(self, index: int, budget_bytes: int, on_lost: Callable[[], None]) -> None:
        """Keep the log from `index` on.

        `on_lost`: called once, when the log has grown beyond the budget and the snapshot in transfer has become
        useless."""
        self.index = index
        self.is_lost = False
        self._budget_bytes = budget_bytes
        self._on_lost = on_lost

    def needed_from(self, journal: GroupJournal, match_index: int) -> int | None:
        """Return the index of the first entry that the log must keep; None once the pin is lost.

        `match_index`: last entry that the member has received from the log. Entries below it need not be kept."""
        needed = max(self.index, match_index)
        if not self.is_lost and journal.bytes_above(needed) > self._budget_bytes:
            self.lose()
        return None if self.is_lost else needed

    def lose(self) -> None:
        """Give up the claim."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()
