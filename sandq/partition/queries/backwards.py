"""Read the log backwards, for pages that begin with the newest message."""

from __future__ import annotations

from collections.abc import Callable

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.view import View
from sandq.partition.reader.reader import ANSWER_READ_BYTES, FILL_TOMBSTONES, tombstones, without

READ_ROWS = 250
"""Number of rows that are read at once."""


def read(
    view: View, low: bytes, high: bytes, limit: int, max_bytes: int, yield_now: Callable[[], None]
) -> tuple[list[Range], bytes | None]:
    """Return ranges of messages above `low` and below `high`, the last range first, and the offset below which to
    continue.

    Returns at most `limit` messages, and reads no more rows once their bytes reach `max_bytes`. Messages within a range
    are in ascending order. The offset is None if nothing is left. `yield_now` is called before each read.
    """
    start, stop = rows.entry_start(low), rows.log_key(high)
    ranges: list[Range] = []
    left = limit
    while True:
        yield_now()
        found = view.scan(start, stop, limit=READ_ROWS, max_bytes=ANSWER_READ_BYTES, reverse=True)
        if not found:
            return ranges, None
        for key, value in found:
            max_bytes -= len(value)
            for part in reversed(_parts(view, rows.log_entry(key, value), low, high)):
                count = min(part.length, left)
                base = offsets.shift(part.first, part.length - count) if count < part.length else part.first
                if count:
                    ranges.append(Range(base, count))
                    left -= count
                if not left:
                    return ranges, base
        stop = found[-1][0]
        if max_bytes <= 0:
            return ranges, stop[1:]


def _parts(view: View, entry: LogEntry, low: bytes, high: bytes) -> list[LogEntry]:
    """Return the messages that a row still has above `low` and below `high`, in ascending order."""
    begin, end = _count_below(entry, int.from_bytes(low, "big") + 1), _count_below(entry, int.from_bytes(high, "big"))
    if begin >= end:
        return []
    if not entry.unit:
        return [entry]
    part = entry.part(begin, end)
    # Only messages of a batch row can have a tombstone while their row exists.
    gone = tombstones(view, part.first, rows.last_of(part), FILL_TOMBSTONES)
    return without(part, gone) if gone else [part]


def _count_below(entry: LogEntry, bound: int) -> int:
    """Return how many messages of a row have an offset below `bound`."""
    steps = -((int.from_bytes(entry.first, "big") - bound) // offsets.PLACE_STEP)
    return min(max(steps, 0), entry.length)
