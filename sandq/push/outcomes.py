"""Decide the outcome of an attempt by the response to its request."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final, NamedTuple

GONE: Final = 410
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
RETRY_AFTER_MOST_S: Final = 86_400
"""Maximum delay that a receiver can ask for, in seconds."""


class End(StrEnum):
    """How an attempt ended; used as labels of metrics."""

    ACKED = "acked"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    """The message is retried, and the attempt does not count."""
    DEAD = "dead"


class Outcome(NamedTuple):
    """The outcome of an attempt: how the message is settled."""

    end: End
    error: str | None = None
    delay_s: float | None = None
    """Delay of the retry in seconds; None: the topic's back-off."""
    status: int | None = None
    """Status of the response; None if there was none."""
    body: bytes = b""
    """The beginning of the body of the response."""

    @property
    def is_failure(self) -> bool:
        """True if the receiver did not accept the message. The circuit breaker counts such outcomes, because other
        messages may fail for the same reason."""
        return self.end is not End.ACKED

    @property
    def is_of_host(self) -> bool:
        """True if the host did not answer, or is overloaded or broken. Other responses concern the message."""
        return self.status is None or self.status == TOO_MANY or self.status >= 500


def outcome_of(status: int, text: str, retry_after: str | None, now_s: float) -> Outcome:
    """Return the outcome for a response. `text`: the beginning of its body; `retry_after`: the header."""
    if 200 <= status < 300:
        return Outcome(End.ACKED, status=status)
    error = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    if status == GONE:
        return Outcome(End.DEAD, error, status=status)
    delay_s = retry_after_s(retry_after, now_s) if status in (TOO_MANY, UNAVAILABLE) else None
    if status == TOO_MANY and delay_s is not None:
        return Outcome(End.SNOOZED, error, delay_s, status)
    if 300 <= status < 400:
        error = f"{error} (redirects are not followed)"
    return Outcome(End.RETRIED, error, delay_s, status)


def retry_after_s(text: str | None, now_s: float) -> int | None:
    """Return the delay in seconds that a Retry-After header (seconds or a date) asks for; None if it cannot be
    parsed."""
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
