"""The state of a message over all groups, and the outcome of a command that changes it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

LEASED: Final = "leased"
WAITING: Final = "waiting"
DEAD: Final = "dead"
ACKED: Final = "acked"
REFUSALS: Final = (LEASED, DEAD, ACKED)
"""States in which a message can no longer be cancelled or moved. If the state differs between groups, the first state
of this list is reported."""


class Claim(NamedTuple):
    """Whether the producer of a message can still change it."""

    pending: bool
    """Whether some group has yet to lease the message, or there is no group."""
    waiting: bool
    """Whether the message waits in some group for its next attempt."""
    refusal: str | None
    """State because of which its producer cannot change it, one of `REFUSALS`. None if the producer can change it.

    A group that passed over the message counts as having acked it. `WAITING`: a seek in progress has yet to decide
    whether the message still waits.
    """

    @property
    def is_settled(self) -> bool:
        """Return whether every group is done with the message."""
        return not (self.pending or self.waiting) and self.refusal not in (LEASED, WAITING)


CANCELLED: Final = "cancelled"
MOVED: Final = "moved"
UPDATED: Final = "updated"
TOO_LATE: Final = "too_late"
NOT_FOUND: Final = "not_found"
REDRIVEN: Final = "redriven"
PURGED: Final = "purged"
NOT_DEAD: Final = "not_dead"


class Outcome(NamedTuple):
    """The outcome of a command for one message. Clients receive it as an array of two."""

    word: str
    """One of the outcome constants above, or `NOT_YET`."""
    detail: Any = None
    """By `word`: the id for `CANCELLED`, `REDRIVEN` and `PURGED`; the offset for `MOVED` and `UPDATED`; the state for
    `TOO_LATE` and `NOT_DEAD`; otherwise None."""
