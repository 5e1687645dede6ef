"""Leaves a receiver alone while it fails at everything.

    closed --THRESHOLD failures in a row--> open --its pause is over--> probing --a success--> closed
                                              ^                            |
                                              +------------a failure-------+     the pause is doubled, up to a bound

While it is open nothing is leased, so that messages do not use up their attempts on a receiver that is down; while it
is probing one message at a time goes out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

THRESHOLD: Final = 5
FIRST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 60.0
MOST_ASKED_S: Final = 600.0
"""The longest pause that a receiver gets because it asks for it (Retry-After)."""


class State(StrEnum):
    """See the module's docstring."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Circuit:
    """Of one group on one node. Times are seconds, of one clock that the caller chooses."""

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.until_s = 0.0
        """When its pause is over, while it is open."""
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S

    def succeeded(self) -> bool:
        """The receiver took something. Whether that changes the state."""
        changes = self.state is not State.CLOSED
        self.state, self._failures, self._pause_s = State.CLOSED, 0, FIRST_PAUSE_S
        return changes

    def failed(self, now_s: float, asked_s: float | None = None) -> bool:
        """The receiver did not take something; it asked to be left alone for so long. Whether that changes the
        state."""
        if self.state is State.OPEN:
            return False  # a request that was under way when it was opened
        self._failures += 1
        if self.state is State.CLOSED and self._failures < THRESHOLD:
            return False
        self.open(now_s, asked_s)
        return True

    def open(self, now_s: float, asked_s: float | None = None) -> None:
        """Leave the receiver alone, each time for longer."""
        pause_s = max(self._pause_s, min(asked_s or 0.0, MOST_ASKED_S))
        self.state, self.until_s = State.OPEN, now_s + pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    def probe(self) -> None:
        """Its pause is over."""
        self.state = State.PROBING
