"""Positions in a topic's delivery order, in the form that callers give them: an instant, an offset, "earliest" or
"latest"."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.model.times import TIME_MAX_MS, Duration, Instant, duration_ms, instant_ms
from sandq.protocol.requests import EARLIEST, LATEST

__all__ = ["Point", "Start", "is_offset", "offset_of", "shift_ms", "span_ms", "start_of"]

Point = Instant
"""An instant, or the text of an offset (26 characters)."""
Start = Point
"""A point, or "earliest" or "latest"."""


def is_offset(point: Any) -> bool:
    """Return whether a point has the form of an offset. An instant never has as many alphanumeric characters."""
    return isinstance(point, str) and len(point) == offset_model.TEXT_CHARS and point.isascii() and point.isalnum()


def start_of(start: Start) -> str | int | bytes:
    """Return the start of a group in wire form. Raises InvalidRequest."""
    if start in (EARLIEST, LATEST):
        return str(start)
    if is_offset(start):
        return offset_model.from_text(str(start))
    try:
        return instant_ms(start)
    except InvalidRequest as error:
        raise error.again(
            f"start: {EARLIEST!r}, {LATEST!r}, an offset or an instant is expected: {error.message}"
        ) from None


def offset_of(point: Point | None, default: bytes | None) -> bytes | None:
    """Return the lowest offset at or after a point. Return `default` if the point is None."""
    if point is None:
        return default
    if is_offset(point):
        return offset_model.from_text(str(point))
    return offset_model.pack(instant_ms(point), 0, 0, 0)


def span_ms(since: Instant | None, until: Instant | None) -> tuple[int, int]:
    """Return `(from_ms, until_ms)` of a request: from `since` on, before `until`. None: no bound."""
    return 0 if since is None else instant_ms(since), TIME_MAX_MS if until is None else instant_ms(until)


def shift_ms(shift: Duration) -> int:
    """Return a duration that may be negative in milliseconds, rounded away from zero."""
    if isinstance(shift, timedelta) and shift < timedelta(0):
        return -duration_ms(-shift)
    if isinstance(shift, str) and shift.startswith("-"):
        return -duration_ms(shift[1:])
    if isinstance(shift, (int, float)) and not isinstance(shift, bool) and shift < 0:
        return -duration_ms(-shift)
    return duration_ms(shift)
