"""What groups made of a message, as far as its producer may ask for it."""

from __future__ import annotations

from typing import Final, NamedTuple

LEASED: Final = "leased"
WAITING: Final = "waiting"
DEAD: Final = "dead"
ACKED: Final = "acked"
REFUSALS: Final = (LEASED, DEAD, ACKED)
"""What it comes too late for; the first of these that is true in one of the groups is told."""


class Claim(NamedTuple):
    """What its producer can have of a message."""

    pending: bool
    """Some group has yet to take it, or there is none."""
    waiting: bool
    """It waits in some group for another attempt."""
    refusal: str | None
    """Why its producer cannot have it: one of `REFUSALS` (a group that passed it over acked it); None: it can."""

    @property
    def is_settled(self) -> bool:
        """Whether every group is done with it."""
        return not (self.pending or self.waiting) and self.refusal != LEASED
