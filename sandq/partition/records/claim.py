"""What groups made of a message, and the outcome of a command that asks for it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

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


CANCELLED: Final = "cancelled"
MOVED: Final = "moved"
UPDATED: Final = "updated"
TOO_LATE: Final = "too_late"
NOT_FOUND: Final = "not_found"
REDRIVEN: Final = "redriven"
PURGED: Final = "purged"
NOT_DEAD: Final = "not_dead"


class Outcome(NamedTuple):
    """What became of a message that a command names: sent to the client as an array of two."""

    word: str
    """One of the words above, or `NOT_YET`."""
    detail: Any = None
    """The id after `CANCELLED`, `REDRIVEN` and `PURGED`; the offset after `MOVED` and `UPDATED`; the state after
    `TOO_LATE` and `NOT_DEAD`; else None."""
