"""Keep the part of a leader's log that a member needs after a snapshot, within a budget.

Without these entries, the member would need another snapshot after it has installed the first snapshot. If writes are
faster than the transfer, the kept entries fill memory and disk: therefore the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandq.raft import GroupJournal

PIN_BYTES: Final = 64 << 20
"""Budget of the first attempt to send a snapshot to a member, in bytes of commands."""
PIN_BYTES_MOST: Final = 256 << 20
"""Maximum budget of an attempt, in bytes of commands. Each failed attempt doubles the budget, up to this maximum."""


def pin_bytes(outrun: int) -> int:
    """Return the budget of the next attempt in bytes. `outrun`: number of attempts that have failed one after the
    other."""
    return min(PIN_BYTES << outrun, PIN_BYTES_MOST)


class LogPin:
    """One member's claim on the log of its leader, from the index of a snapshot on."""

    def __init__(self, index: int, budget_bytes: int, on_lost: Callable[[], None]) -> None:
        """Keep the log from `index` on.

        `on_lost`: called once, when the claim is given up. Then the snapshot in transfer is useless."""
        self.index = index
        self.is_lost = False
        self._budget_bytes = budget_bytes
        self._on_lost = on_lost

    def needed_from(self, journal: GroupJournal, match_index: int) -> int | None:
        """Return the index of the first entry that the log must keep; None once the claim is lost. If the claim exceeds
        its budget, give it up.

        `match_index`: index of the last entry that the member has received from the log. The member does not need
        earlier entries."""
        needed = max(self.index, match_index)
        if not self.is_lost and journal.bytes_above(needed) > self._budget_bytes:
            self.lose()
        return None if self.is_lost else needed

    def lose(self) -> None:
        """Give up the claim."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()
