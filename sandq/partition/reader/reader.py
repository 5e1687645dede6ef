"""The log as one group's cursor reads it: the next entries in order, from a bounded look-ahead in memory.

The look-ahead is a cache of rows, not state: `head` and `take` return the same results as a scan of the rows, for any
content of the cache. Invariant: `entries` are exactly the log entries above the cursor and at or below `covered`,
without messages that have tombstones.

While nothing is taken, a reader caches little more than its head. When messages are taken, each read is twice as large
as the last one, and the cache keeps new entries. If the caches of a node together grow too large, the least recently
used ones are evicted (`look_aheads.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, cast

from sandq.model import offsets
from sandq.model.retries import RetryRules
from sandq.partition.base import rows
from sandq.partition.base.rows import SHARED_BYTES, LogEntry, Range
from sandq.partition.base.view import Bounds, Row, View
from sandq.partition.limits.cost_budget import CostBudget
from sandq.partition.reader import overlays
from sandq.partition.reader.look_aheads import LookAheads

LOOK_AHEAD_ENTRIES = 2048
LOOK_AHEAD_BYTES = 4 << 20
ANSWER_READ_BYTES = 1 << 20
"""Number of bytes to read at once for the reply to a query."""
HEAD_ENTRIES = 8
"""Number of entries cached while nothing is taken."""
HEAD_BYTES = 256 << 10
ENTRY_BYTES = 256
"""Approximate memory of an entry, in bytes. An entry with an extra takes twice as much, or three times with retry
rules, plus its unique key and its tenant. If an entry has its row, the bytes of the row are added."""
AT_HAND_BYTES = 512
"""Maximum size of a plain row that an entry keeps in memory, in bytes."""
FEW = 16
"""At most this many entries are inserted one by one, which is then cheaper than sorting."""
WHOLE_ROW_BYTES = 2 << 20
"""A limit on bytes does not cut a row below this size, in bytes, because a whole batch is sent unchanged."""
FILL_TOMBSTONES = (1 << 16) + 1
"""Limit for reading tombstones: more than one row can have messages."""
NEAR_ROWS = 16
NEAR_BYTES = 1 << 20
PASSED_OVER = 1000
"""Maximum number of messages that one `take` skips."""
_, _LOG_STOP = rows.tag_bounds(rows.LOG)
_NO_LIMIT = 1 << 40

Judge = Callable[[LogEntry], bool | None]
"""Returns whether to take an entry (True), to skip it (False), or to stop before it (None)."""


class Taken(NamedTuple):
    """The result of moving a cursor over messages."""

    ranges: list[Range]
    size: int
    """Total size of the messages, in bytes."""
    plain: list[bytes] | None
    """The row of each range. None unless all ranges are single messages whose plain rows are in memory."""
    retry: RetryRules | None = None
    """The retry rules that all taken messages have. None if they have none of their own."""


class LogReader:
    fixed_bytes = 0
    """See `LookAhead`."""

    def __init__(self, cursor: bytes, look_ahead: int | None = None, look_aheads: LookAheads | None = None) -> None:
        """`look_ahead`: maximum number of rows to read at once. `look_aheads`: the look-aheads of the node, for a
        reader that lives long; None for a short-lived reader."""
        self.cursor = cursor
        self.covered = cursor
        self.entries: deque[LogEntry] = deque()
        self.taken = (0, 0)
        """(second in which the cursor is, number of that second's messages that the cursor has passed)."""
        self.passed: int | None = None
        """Number of due messages that the cursor has passed, counted as in `Counts.due`. None if the number is not
        known."""
        self.unsure_s: int | None = None
        """While the cursor is in this second, `passed` may be too small."""
        self._most = look_ahead or LOOK_AHEAD_ENTRIES
        self._look_aheads = look_aheads
        self._window = self._most if look_aheads is None else min(HEAD_ENTRIES, self._most)
        """Number of rows that the next read for `take` returns."""
        self._kept = self._window
        """While fewer than this many entries are cached, inserted entries are cached, too."""
        self._entry_bytes = ENTRY_BYTES
        """Memory of the largest cached entry, in bytes."""
        self.held_bytes = self.used = 0
        """See `LookAhead`."""

    def seek(self, cursor: bytes) -> None:
        """Move the cursor to another offset, and drop the cache."""
        self.cursor = self.covered = cursor
        self.entries.clear()
        self._count()
        self.taken = (0, 0)
        self.passed = None

    def drop_cache(self, last: bytes) -> None:
        """Drop the cache, because rows at or below this offset have changed."""
        if last > self.cursor:
            self.covered = self.cursor
            self.entries.clear()
            self._count()

    def insert(self, added: list[LogEntry]) -> None:
        """Add the sorted entries of new log rows to the cache. Such entries are always above the cursor, because
        new messages are placed above it."""
        assert not added or added[0].first > self.cursor, "a row below a cursor would never be delivered"
        near = added if added and added[-1].first <= self.covered else [e for e in added if e.first <= self.covered]
        if not near:
            return
        if not self.entries or near[0].first > self.entries[-1].first:
            self.entries.extend(near)
        elif len(near) < FEW:
            for entry in near:
                insort(self.entries, entry, key=_first)
        else:
            self.entries = deque(sorted([*self.entries, *near], key=_first))
        self._weigh(near)
        if len(self.entries) > 2 * self._kept:
            self._cut(self._kept)
        self._count()

    def remove(self, offset: bytes) -> None:
        """Remove a message above the cursor from the cache."""
        entries = self.entries
        if offset > self.covered or not entries:
            return
        at = bisect_right(entries, offset, key=_first) - 1
        if at >= 0:
            entry = entries[at]
            del entries[at]
            for part in reversed(without(entry, [offset])):
                entries.insert(at, part)

    def replace(self, changed: list[LogEntry]) -> None:
        """Replace the cached entries of messages whose rows have changed. Each message has a row of its own. The
        messages are in log order."""
        entries = self.entries
        if not entries or changed[0].first > self.covered or changed[-1].first < entries[0].first:
            return
        if len(changed) == 1:
            at = bisect_left(entries, changed[0].first, key=_first)
            if at < len(entries) and entries[at].first == changed[0].first:
                entries[at] = changed[0]
            return
        by_first = {entry.first: entry for entry in changed}
        self.entries = deque([by_first.get(entry.first, entry) for entry in entries])

    def replace_part(self, changed: LogEntry) -> None:
        """Make a message an entry of its own, because its size now differs from the size of other messages in its
        row."""
        entries = self.entries
        at = bisect_right(entries, changed.first, key=_first) - 1
        if changed.first > self.covered or at < 0:
            return
        parts = _cut_out(entries[at], [changed])
        del entries[at]
        for part in reversed(parts):
            entries.insert(at, part)
        self._weigh([changed])
        if len(entries) > 2 * self._kept:  # one row may become two entries for each of its messages
            self._cut(self._kept)
        self._count()

    def uncount(self, offset: bytes, count: int = 1) -> None:
        """Subtract messages at one offset, which are no longer in the log, from the number of passed messages."""
        if self.taken[0] == offsets.deliver_ms(offset) // 1000:
            self.taken = (self.taken[0], self.taken[1] - count)

    @property
    def knows_head(self) -> bool:
        """Whether `head` reads no rows."""
        return bool(self.entries) or self.covered == offsets.LAST

    def has_at_hand(self, until_ms: int, most: int) -> bool:
        """Return whether the messages due at `until_ms`, and the next one, are in the cache: at most `most` single
        messages with their plain rows."""
        end = ((min(until_ms, offsets.U48_MAX) + 1) << 80).to_bytes(17, "big")[1:]
        for count, (first, length, _, extra, _, row) in enumerate(self.entries):
            if first >= end:
                return True
            if count == most or length > 1 or extra is not None or row is None:
                return False
        return self.covered == offsets.LAST

    def head(self, view: View) -> LogEntry | None:
        """Return the first entry above the cursor. None if there is none."""
        if self._kept == self._most:
            return self._next(view)  # this cursor has been read before, so more reads follow: read ahead
        while not self.entries and self.covered != offsets.LAST:
            self._fill(view, min(HEAD_ENTRIES, self._most), HEAD_BYTES)
        return self.entries[0] if self.entries else None

    def _next(self, view: View) -> LogEntry | None:
        """Return the first entry like `head`, and read ahead, because the caller will take messages."""
        while not self.entries and self.covered != offsets.LAST:
            self._fill(view, self._window, LOOK_AHEAD_BYTES)
            self._window = min(2 * self._window, self._most)
        return self.entries[0] if self.entries else None

    def evict(self) -> None:
        """Drop the cache, except the head, until messages are taken again."""
        self._window = self._kept = min(HEAD_ENTRIES, self._most)
        if len(self.entries) > self._kept:
            self._cut(self._kept)
        self._entry_bytes = ENTRY_BYTES
        self._weigh(self.entries)
        self._count()

    def _cut(self, length: int) -> None:
        """Keep only the first `length` cached entries."""
        self.entries = deque(islice(self.entries, length))
        self.covered = rows.last_of(self.entries[-1])

    def _weigh(self, added: Iterable[LogEntry]) -> None:
        """Update the size of the largest cached entry."""
        for entry in added:
            if entry.extra is not None:
                size = 2 * ENTRY_BYTES + len(entry.extra.unique_key or b"") + len(entry.extra.tenant or b"")
                size += 0 if entry.extra.retry is None else ENTRY_BYTES
                self._entry_bytes = max(self._entry_bytes, size)
            elif entry.row is not None:
                self._entry_bytes = max(self._entry_bytes, ENTRY_BYTES + entry.size)

    def _count(self) -> None:
        """Report the memory in use beyond the head to the node's look-aheads."""
        if self._look_aheads is not None:
            held_bytes = max(len(self.entries) - 2 * HEAD_ENTRIES, 0) * self._entry_bytes
            self._look_aheads.bytes += held_bytes - self.held_bytes
            self.held_bytes = held_bytes

    def take(
        self,
        view: View,
        until_ms: int,
        limit: int,
        max_bytes: int,
        judge: Judge | None = None,
        *,
        judge_all: bool = False,
        is_alike: bool = False,
        budget: CostBudget | None = None,
    ) -> Taken:
        """Move the cursor over the messages that are due at `until_ms`, in order.

        Stop after `limit` messages, or after the message that brings the bytes to `max_bytes` (in a small row: after
        the row). If `is_alike`, stop before a message whose own retry rules differ from those of the messages before.
        Stop before a message that does not fit into the `budget` for costs, and spend the costs of the taken messages.
        `judge` decides about entries with an extra, or about all entries (`judge_all`). See `Judge`. It must also stop
        before an entry that does not fit into the budget.
        """
        taken: list[Range] = []
        plain: list[bytes | None] = []
        taken_bytes = passed_over = passed_bytes = 0
        retry: RetryRules | None = None
        while limit > 0 and taken_bytes < max_bytes and passed_over < PASSED_OVER and passed_bytes < max_bytes:
            entry = self.entries[0] if self.entries else self._next(view)
            if entry is None or offsets.deliver_ms(entry.first) > until_ms:
                break
            own = entry.extra.retry if is_alike and entry.extra is not None else None
            if taken and own != retry:
                break
            verdict = True if judge is None or not (judge_all or entry.extra is not None) else judge(entry)
            if verdict is None:
                break
            if not verdict:
                passed_over += entry.length
                passed_bytes += entry.size
                self.advance_over_head()
                continue
            most = limit if budget is None else min(limit, budget.most(entry.cost))
            if not most:
                break
            if not judge_all and entry.extra is None and entry.length == 1:
                # Fast path: take many single messages that `judge` need not see.
                singles, size = self._advance_over_singles(until_ms, most, max_bytes - taken_bytes)
                taken += rows.single_ranges([single.first for single in singles])
                plain += [single.row for single in singles]
                limit -= len(singles)
                taken_bytes += size
                if budget is not None:
                    budget.spend(len(singles))
                continue
            count = min(entry.length, most)
            if entry.size > WHOLE_ROW_BYTES:
                # End a large row with the message that brings the bytes to `max_bytes`.
                count = min(count, 1 + (max_bytes - taken_bytes - 1) // (entry.unit or entry.size))
            size = entry.size if count == entry.length else entry.unit * count
            taken.append(Range(entry.first, count))
            retry = own
            limit -= count
            taken_bytes += size
            if budget is not None:
                budget.spend(count * entry.cost)
            self._pass(entry, count)
            self.entries.popleft()
            if count < entry.length:
                self.entries.appendleft(entry.part(count, entry.length))
        if self._look_aheads is not None and (taken or passed_over):
            self._kept, self.used = self._most, self._look_aheads.next_use()
            self._count()
        at_hand = len(plain) == len(taken) and None not in plain
        return Taken(taken, taken_bytes, cast("list[bytes]", plain) if at_hand and plain else None, retry)

    def advance_over_due(self, view: View, until_ms: int, limit: int) -> list[LogEntry]:
        """Move the cursor over at most `limit` entries that are due at `until_ms`, and return them."""
        passed: list[LogEntry] = []
        while len(passed) < limit:
            entry = self.entries[0] if self.entries else self._next(view)
            if entry is None or offsets.deliver_ms(entry.first) > until_ms:
                break
            if entry.extra is None and entry.length == 1:
                passed += self._advance_over_singles(until_ms, limit - len(passed), _NO_LIMIT)[0]
            else:
                self.advance_over_head()
                passed.append(entry)
        if self._look_aheads is not None and passed:
            self._kept, self.used = self._most, self._look_aheads.next_use()
            self._count()
        return passed

    def _advance_over_singles(self, until_ms: int, limit: int, max_bytes: int) -> tuple[list[LogEntry], int]:
        """Move the cursor over the next single messages without an extra. Return these messages and their bytes. The
        first entry must be such a message."""
        end = ((min(until_ms, offsets.U48_MAX) + 1) << 80).to_bytes(17, "big")[1:]
        entries, taken, size = self.entries, 0, 0
        for first, length, its_size, extra, *_ in islice(entries, limit):
            if length > 1 or extra is not None or (first >= end > offsets.FIRST) or size >= max_bytes:
                break
            taken += 1
            size += its_size
        singles = [entries.popleft() for _ in range(taken)]
        passed = [single.first for single in singles]
        self.cursor = passed[-1]
        self.covered = max(self.covered, self.cursor)
        if self.passed is not None:
            self.passed += taken
        second = offsets.deliver_ms(self.cursor) // 1000
        before = bisect_left(passed, (second * 1000 << 80).to_bytes(16, "big"))
        known = self.taken[1] if not before and self.taken[0] == second else 0
        self.taken = (second, known + taken - before)
        return singles, size

    def advance_over_head(self) -> None:
        """Move the cursor over the first entry."""
        entry = self.entries.popleft()
        self._pass(entry, entry.length)

    def _pass(self, entry: LogEntry, count: int) -> None:
        """Move the cursor over the first `count` messages of an entry, and update the counts."""
        self.cursor = offsets.shift(entry.first, count - 1) if count > 1 else entry.first
        # Keep the invariant `covered` >= `cursor`, even if the look-ahead was shorter.
        self.covered = max(self.covered, self.cursor)
        if self.passed is not None:
            self.passed += count
        second = offsets.deliver_ms(entry.first) // 1000
        self.taken = (second, self.taken[1] + count if self.taken[0] == second else count)

    def _fill(self, view: View, limit: int, max_bytes: int) -> None:
        """Read the next rows after the look-ahead, which must be empty."""
        found = self._read(view, limit, max_bytes)
        if rows.are_plain([value for _, value in found]):
            entries = rows.plain_entries(found, AT_HAND_BYTES)
        else:
            is_plain, log_entry = rows.is_plain, rows.log_entry
            entries = [
                LogEntry(key[1:], 1, len(value)) if is_plain(value) else log_entry(key, value) for key, value in found
            ]
        # Only messages of batch rows can have tombstones while their row exists.
        batches = [entry for entry in entries if entry.unit]
        rest = self._rest_of_row(view)
        if rest is not None:
            entries.insert(0, rest)
            batches.insert(0, rest)
        # If no rows were found, the log ends here. Later rows reach the cache through `insert`.
        self.covered = rows.last_of(entries[-1]) if found else offsets.LAST
        if batches:
            gone = tombstones(view, batches[0].first, rows.last_of(batches[-1]), FILL_TOMBSTONES)
            if len(gone) == FILL_TOMBSTONES:
                # There may be more tombstones. All tombstones of the first batch were read, but perhaps not those of
                # later batches.
                entries = [entry for entry in entries if rows.last_of(entry) <= gone[-1]]
                self.covered = rows.last_of(entries[-1])
            entries = _without(entries, gone)
            entries = _cut_out_all(entries, overlays.among(view, batches[0].first, rows.last_of(batches[-1])))
        self.entries.extend(entries)
        self._entry_bytes = ENTRY_BYTES
        self._weigh(entries)

    def _read(self, view: View, limit: int, max_bytes: int) -> list[Row]:
        """Return the next log rows after the look-ahead: at most `limit` rows, and about `max_bytes`."""
        return view.scan(rows.after(rows.log_key(self.covered)), _LOG_STOP, limit=limit, max_bytes=max_bytes)

    def _rest_of_row(self, view: View) -> LogEntry | None:
        """Return the rest of the row that contains `covered`. After a restart or a seek, `covered` is the cursor;
        otherwise it is where the look-ahead was cut. None if no messages of the row are left."""
        found = row_holding(view, self.covered)
        if found is None:
            return None
        entry = rows.log_entry(*found)
        behind = offsets.distance(entry.first, self.covered)
        assert behind is not None
        return entry.part(behind + 1, entry.length) if behind + 1 < entry.length else None


class AnswerReader(LogReader):
    """Reads a part of the log for the reply to a query, and yields the time slice before each read."""

    def __init__(self, cursor: bytes, yield_now: Callable[[], None], rows: dict[bytes, bytes] | None = None) -> None:
        """`rows`: receives all rows that the reader reads, for a caller that needs their messages next."""
        super().__init__(cursor)
        self._yield_now = yield_now
        self._rows = rows

    def _read(self, view: View, limit: int, max_bytes: int) -> list[Row]:
        """Yield the time slice, then read rows like `LogReader`."""
        self._yield_now()
        found = super()._read(view, limit, min(max_bytes, ANSWER_READ_BYTES))
        if self._rows is not None:
            self._rows.update(found)
        return found


def row_holding(view: View, offset: bytes) -> Row | None:
    """Return the log row that contains the message at this offset. None if there is none."""
    return find_row(view, offset)[0]


def find_row(view: View, offset: bytes) -> tuple[Row | None, int]:
    """Return (row as in `row_holding`, number of bytes read in the search)."""
    start, stop = holding_bounds(offset)
    # Scan forwards first. Rows before the offset are often deleted, and a backward scan would step over all of them.
    near = view.scan(start, stop, limit=NEAR_ROWS, max_bytes=NEAR_BYTES)
    size = sum([len(value) for _, value in near])
    if near and _is_in(near[-1], offset):
        return near[-1], size
    if len(near) < NEAR_ROWS and size < NEAR_BYTES:
        return None, size  # the scan reached `stop`, so its last row is the last one before the offset
    found = view.scan(start, stop, limit=1, max_bytes=1, reverse=True)
    size += sum([len(value) for _, value in found])
    return (found[0] if found and _is_in(found[0], offset) else None), size


def gap_around(view: View, offset: bytes) -> Bounds:
    """Return the gap that contains an offset without a log row. Within the offset's entry, no row has a message between
    the two bounds."""
    start, stop = holding_bounds(offset)
    before = view.scan(start, stop, limit=1, max_bytes=1, reverse=True)
    end = start[: 1 + SHARED_BYTES] + b"\xff" * 5
    behind = view.scan(stop, end, limit=1, max_bytes=1)
    low = rows.last_of(rows.log_entry(*before[0])) if before else offset[:SHARED_BYTES]
    return low, behind[0][0][1:] if behind else end[1:]


def holding_bounds(offset: bytes) -> Bounds:
    """Return the bounds of the log rows that may contain the message at this offset."""
    return rows.entry_start(offset), rows.after(rows.log_key(offset))


def _is_in(row: Row, offset: bytes) -> bool:
    """Return whether a log row contains the message at this offset."""
    entry = rows.log_entry(*row)
    behind = offsets.distance(entry.first, offset)
    return behind is not None and 0 <= behind < entry.length


def single_row_entry(view: View, offset: bytes) -> LogEntry:
    """Return the entry of a message that has a log row of its own."""
    row = view.get(rows.log_key(offset))
    return LogEntry(offset, 1, 0) if row is None else rows.log_entry(rows.log_key(offset), row)


def whole_row_entry(view: View, offset: bytes) -> LogEntry:
    """Return the entry of the whole log row that contains a message."""
    row = row_holding(view, offset)
    return rows.log_entry(*row) if row is not None else LogEntry(offset, 1, 1)


def cursor_before(offset: bytes) -> bytes:
    """Return a cursor directly before a message: the previous position of the batch, or the number before the
    offset."""
    if offsets.unpack(offset).place:
        return offsets.shift(offset, -1)
    return (max(int.from_bytes(offset, "big"), 1) - 1).to_bytes(16, "big")


def without(entry: LogEntry, gone: list[bytes]) -> list[LogEntry]:
    """Return the parts of an entry that are left after removing the offsets `gone`, which must be sorted. Offsets
    outside of the entry have no effect."""
    parts: list[LogEntry] = []
    start = 0
    for offset in gone:
        at = offsets.distance(entry.first, offset)
        if at is None or not start <= at < entry.length:
            continue
        if at > start:
            parts.append(entry.part(start, at))
        start = at + 1
    if not start:
        return [entry]
    if start < entry.length:
        parts.append(entry.part(start, entry.length))
    return parts


def tombstones(view: View, first: bytes, last: bytes, limit: int) -> list[bytes]:
    """Return the offsets of tombstones between `first` and `last`, both included."""
    # Most partitions have no tombstones. A scan of an empty range is expensive: it steps over all rows that were
    # deleted between the range and the next row of the store.
    if view.has_tombstones is None:
        view.has_tombstones = bool(view.scan(*rows.tag_bounds(rows.TOMBSTONE), limit=1, max_bytes=1))
    if not view.has_tombstones:
        return []
    start, stop = rows.TOMBSTONE + first, rows.after(rows.TOMBSTONE + last)
    return [key[1:] for key, _ in view.scan(start, stop, limit=limit, max_bytes=_NO_LIMIT)]


def _without(entries: list[LogEntry], gone: list[bytes]) -> list[LogEntry]:
    """Apply `without` to many entries in order."""
    left: list[LogEntry] = []
    at = 0
    for entry in entries:
        while at < len(gone) and gone[at] < entry.first:
            at += 1
        stop = bisect_right(gone, rows.last_of(entry), at)
        left += without(entry, gone[at:stop])
        at = stop
    return left


def _cut_out(entry: LogEntry, changed: list[LogEntry]) -> list[LogEntry]:
    """Return an entry in parts, with the messages of `changed` as entries of their own. `changed` must be sorted;
    messages of other entries have no effect."""
    parts: list[LogEntry] = []
    start = 0
    for one in changed:
        at = offsets.distance(entry.first, one.first)
        if at is None or not start <= at < entry.length:
            continue
        if at > start:
            parts.append(entry.part(start, at))
        parts.append(one)
        start = at + 1
    if not start:
        return [entry]
    if start < entry.length:
        parts.append(entry.part(start, entry.length))
    return parts


def _cut_out_all(entries: list[LogEntry], others: overlays.Overlays) -> list[LogEntry]:
    """Return entries in parts, so that messages with overlaid fields are entries of their own."""
    changed = [LogEntry(offset, 1, size, None, size) for offset, (_, size) in sorted(others.items()) if size]
    if not changed:
        return entries
    cut: list[LogEntry] = []
    for entry in entries:
        start = bisect_left(changed, entry.first, key=_first)
        stop = bisect_right(changed, rows.last_of(entry), start, key=_first)
        cut += _cut_out(entry, changed[start:stop]) if entry.unit else [entry]
    return cut


def _first(entry: LogEntry) -> bytes:
    """Return the first offset of an entry: its sort key."""
    return entry.first
