"""The log as one group's cursor sees it: the next entries in order, from a bounded look-ahead in memory.

The look-ahead is a cache of rows, never state: whatever it holds, `head` and `take` answer what a scan of the
rows would. Invariant: `entries` are exactly the log entries above the cursor and at or below `covered`.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice

from sandq.model import offsets

from . import rows
from .rows import LogEntry, Range
from .view import View

LOOK_AHEAD_ENTRIES = 2048
LOOK_AHEAD_BYTES = 4 << 20
FEW = 16
"""Rows that are cheaper put in one by one than by sorting."""
WHOLE_ROW_BYTES = 2 << 20
"""A smaller row is not cut by a limit on bytes: a batch that is taken whole is sent as it is."""
_, _LOG_STOP = rows.tag_bounds(rows.LOG)


class LogReader:
    def __init__(self, cursor: bytes) -> None:
        self.cursor = cursor
        self.covered = cursor
        self.entries: deque[LogEntry] = deque()

    def insert(self, added: list[LogEntry]) -> None:
        """Log rows were added, in order (always above the cursor: the placing rule)."""
        assert added[0].first > self.cursor, "a row below a cursor would never be delivered"
        near = added if added[-1].first <= self.covered else [e for e in added if e.first <= self.covered]
        if not near:
            return
        if not self.entries or near[0].first > self.entries[-1].first:
            self.entries.extend(near)
        elif len(near) < FEW:
            for entry in near:
                insort(self.entries, entry)
        else:
            self.entries = deque(sorted([*self.entries, *near]))
        if len(self.entries) > 2 * LOOK_AHEAD_ENTRIES:
            self.entries = deque(islice(self.entries, LOOK_AHEAD_ENTRIES))
            self.covered = rows.last_of(self.entries[-1])

    def head(self, view: View) -> LogEntry | None:
        """The first entry above the cursor; None when the log ends there."""
        if not self.entries and self.covered != offsets.LAST:
            self._fill(view)
        return self.entries[0] if self.entries else None

    def take(self, view: View, until_ms: int, limit: int, max_bytes: int) -> tuple[list[Range], int]:
        """Move the cursor over what is due at `until_ms`, in order: at most `limit` messages, and not beyond the one
        (of a small row: not beyond the row) that reaches `max_bytes`. Returns the ranges passed, and their bytes."""
        taken: list[Range] = []
        taken_bytes = 0
        while limit > 0 and taken_bytes < max_bytes:
            entry = self.head(view)
            if entry is None or offsets.deliver_ms(entry.first) > until_ms:
                break
            count = min(entry.length, limit)
            if entry.size > WHOLE_ROW_BYTES:
                average = max(1, entry.size // entry.length)
                count = min(count, 1 + (max_bytes - taken_bytes - 1) // average)
            size = entry.size if count == entry.length else max(1, entry.size * count // entry.length)
            taken.append(Range(entry.first, count))
            limit -= count
            taken_bytes += size
            self.entries.popleft()
            if count < entry.length:
                rest = LogEntry(offsets.shift(entry.first, count), entry.length - count, entry.size - size)
                self.entries.appendleft(rest)
            self.cursor = offsets.shift(entry.first, count - 1)
            # What was passed is covered, however short the look-ahead was.
            self.covered = max(self.covered, self.cursor)
        return taken, taken_bytes

    def _fill(self, view: View) -> None:
        rest = self._rest_of_row(view)
        if rest is not None:
            self.entries.append(rest)
        found = view.scan(
            rows.after(rows.log_key(self.covered)),
            _LOG_STOP,
            limit=LOOK_AHEAD_ENTRIES,
            max_bytes=LOOK_AHEAD_BYTES,
        )
        self.entries.extend(rows.log_entry(key, value) for key, value in found)
        # Nothing found means that the log ends here: whatever comes later is inserted.
        self.covered = rows.last_of(self.entries[-1]) if found else offsets.LAST

    def _rest_of_row(self, view: View) -> LogEntry | None:
        """What lies above the cursor in the row that the cursor stands in (after a restart or a partial take)."""
        start, stop = rows.entry_start(self.cursor), rows.after(rows.log_key(self.cursor))
        found = view.scan(start, stop, limit=1, max_bytes=1, reverse=True)
        if not found:
            return None
        entry = rows.log_entry(*found[0])
        behind = offsets.distance(entry.first, self.cursor)
        if behind is None or not 0 <= behind < entry.length - 1:
            return None
        left = entry.length - 1 - behind
        return LogEntry(offsets.shift(self.cursor, 1), left, max(1, entry.size * left // entry.length))
