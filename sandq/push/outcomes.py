"""What the answer to a request says about its message."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final, NamedTuple

GONE: Final = 410
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
RETRY_AFTER_MOST_S: Final = 86_400
"""However long the receiver wants to be left alone."""


class End(StrEnum):
    """How an attempt ended; labels of metrics."""

    ACKED = "acked"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    """It comes again, and the attempt is not counted."""
    DEAD = "dead"


class Outcome(NamedTuple):
    """What becomes of a message."""

    end: End
    error: str | None = None
    delay_s: int | None = None
    """None: the back-off of the topic."""

    @property
    def is_failure(self) -> bool:
        """Whether the receiver did not take it, and takes no others either, perhaps."""
        return self.end is not End.ACKED


def outcome_of(status: int, text: str, retry_after: str | None, now_s: float) -> Outcome:
    """Return what an answer says. `text`: the beginning of its body; `retry_after`: the header."""
    if 200 <= status < 300:
        return Outcome(End.ACKED)
    error = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    if status == GONE:
        return Outcome(End.DEAD, error)
    delay_s = retry_after_s(retry_after, now_s) if status in (TOO_MANY, UNAVAILABLE) else None
    if status == TOO_MANY and delay_s is not None:
        return Outcome(End.SNOOZED, error, delay_s)
    if 300 <= status < 400:
        error = f"{error} (redirects are not followed)"
    return Outcome(End.RETRIED, error, delay_s)


def retry_after_s(text: str | None, now_s: float) -> int | None:
    """Return in how many seconds a Retry-After header asks to come back: it says seconds, or a date. None: it says
    nothing that can be read."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(int(text[:12]), RETRY_AFTER_MOST_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        wait_s = at.timestamp() - now_s
    except (ValueError, OverflowError):
        return None
    return min(max(-int(-wait_s // 1), 0), RETRY_AFTER_MOST_S)
