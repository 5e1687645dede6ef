"""A circuit breaker: pause a receiver while all requests to it fail.

    closed --THRESHOLD failures in a row--> open --its pause is over--> probing --a success--> closed
                                              ^                            |
                                              +------------a failure-------+     the pause is doubled, up to a limit

While the circuit is open, no messages are leased: they would use up their attempts on a receiver that is down. While
the circuit is probing, one message at a time is sent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

THRESHOLD: Final = 5
FIRST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 60.0
MOST_ASKED_S: Final = 600.0
"""Maximum pause that a receiver can request (Retry-After), in seconds."""


class State(StrEnum):
    """The state of a circuit breaker; see the module's docstring."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Circuit:
    """The circuit breaker of one group on one node. Times are in seconds, on a clock that the caller chooses."""

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.until_s = 0.0
        """End of the pause in seconds, while the circuit is open."""
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S

    def succeeded(self) -> bool:
        """Record a success; return whether the state changed."""
        changes = self.state is not State.CLOSED
        self.state, self._failures, self._pause_s = State.CLOSED, 0, FIRST_PAUSE_S
        return changes

    def failed(self, now_s: float, asked_s: float | None = None) -> bool:
        """Record a failure; return whether the state changed. `asked_s`: the pause that the receiver requested."""
        if self.state is State.OPEN:
            return False  # a request that was in progress when the circuit was opened
        self._failures += 1
        if self.state is State.CLOSED and self._failures < THRESHOLD:
            return False
        self.open(now_s, asked_s)
        return True

    def open(self, now_s: float, asked_s: float | None = None) -> None:
        """Start a pause; each pause is longer than the last one."""
        pause_s = max(self._pause_s, min(asked_s or 0.0, MOST_ASKED_S))
        self.state, self.until_s = State.OPEN, now_s + pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    def probe(self) -> None:
        """End the pause, and let single messages pass."""
        self.state = State.PROBING
