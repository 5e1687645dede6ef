"""Counts the messages in each second of the log, so that forecasts, backlogs and read limits need no scan.

A message counts in the second of its delivery time from its insertion until it is cancelled or moved in the log. Acked
messages, and messages that are only in rows of groups, stay counted until the log is trimmed beyond their whole hour.

Rows, `hour u32 | seq u64`: changes of an hour, `[second of the hour, change, ...]`. Each write of the partition's rows
adds a row instead of changing one, so that counting a message far in the future reads nothing. After `FOLD_ROWS` rows
of an hour, these are folded into one row. The number of rows is known only for some hours. So one row in `FOLD_ROWS`,
chosen by a hash of its number, also causes a fold. So an hour has few rows, even if many hours are written in turn. A
few hours are cached in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import floordiv

from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View

HOUR_S = 3600
HOT_HOURS = 8
FOLD_ROWS = 64
COUNTED_HOURS = 256
"""Maximum number of hours for which the number of rows is known."""
DROP_ROWS = 1000
ROWS_AT_ONCE = 256
_NO_LIMIT = 1 << 40
_MASK = (1 << 64) - 1

Seconds = Counter[int]
"""Second of the hour -> number of messages."""


class Counts:
    def __init__(self) -> None:
        self.now_s = 0
        self.later = 0
        """Number of messages whose second is after `now_s`."""
        self.due = 0
        """Number of messages that became due, minus due messages that were cancelled or moved. Local to this process:
        only the difference between two values has a meaning."""
        self._first_hour = 0
        self._next_seq = 1
        self._changes: dict[int, Seconds] = {}
        """Changes by hour that are not in rows yet."""
        self._uncounted: list[int] = []
        """Times (ms) of messages that are not in `_changes` yet, so that several batches are counted at once."""
        self._hot: OrderedDict[int, Seconds] = OrderedDict()
        """Cached hours, including changes that are not in rows yet."""
        self._rows: dict[int, int] = {}
        """Number of rows by hour. The hour that was written longest ago comes first."""

    def state(self) -> tuple[int, int, int, int]:
        """Return the values to store in the state row."""
        return self.now_s, self.later, self._first_hour, self._next_seq

    def load(self, state: tuple[int, int, int, int]) -> None:
        """Restore the values that `state` returned."""
        self.now_s, self.later, self._first_hour, self._next_seq = state

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, deliver_ms: int, count: int) -> None:
        """Add `count` messages at this time. A negative `count` removes messages."""
        self._add(deliver_ms // 1000, count)

    def add_each(self, times_ms: Sequence[int]) -> None:
        """Add one message at each of these times."""
        if not times_ms:
            return
        end_ms = (self.now_s + 1) * 1000
        due = 0 if min(times_ms) >= end_ms else sum([at_ms < end_ms for at_ms in times_ms])
        self.due += due
        self.later += len(times_ms) - due
        self._uncounted += times_ms

    def _count(self) -> None:
        """Move `_uncounted` to `_changes`. Keep the order, because it determines the sequence numbers of rows."""
        if not self._uncounted:
            return
        seconds = Counter(map(floordiv, self._uncounted, repeat(1000)))
        self._uncounted = []
        for second, count in seconds.items():
            hour, at = divmod(second, HOUR_S)
            changes = self._changes.get(hour)
            if changes is None:
                changes = self._changes[hour] = Counter()
            changes[at] += count
            if hour in self._hot:
                self._hot[hour][at] += count

    def _add(self, second: int, count: int) -> None:
        """Add `count` messages at this second."""
        self._count()
        if second > self.now_s:
            self.later += count
        else:
            self.due += count
        hour, at = divmod(second, HOUR_S)
        changes = self._changes.get(hour)
        if changes is None:
            changes = self._changes[hour] = Counter()
        changes[at] += count
        if hour in self._hot:
            self._hot[hour][at] += count

    def advance(self, step: Step) -> None:
        """Move the time forward to `step.now_ms`. Messages up to this time are no longer counted in `later`."""
        now_s = step.now_ms // 1000
        if now_s <= self.now_s:
            return
        if self.later:
            now_due = self.between(self.now_s + 1, now_s + 1, step.view)
            self.later -= now_due
            self.due += now_due
        self.now_s = now_s

    def knows_until(self, now_ms: int) -> bool:
        """Return whether `advance` to this time reads no rows."""
        if not self.later or now_ms // 1000 <= self.now_s:
            return True
        first, last = (self.now_s + 1) // HOUR_S, now_ms // 1000 // HOUR_S
        return first == last and last in self._hot

    def set_back(self, step: Step, until_ms: int) -> None:
        """Set the time back to `step.now_ms`. Messages after its second, up to the second of `until_ms`, are no longer
        counted. The caller adds them again."""
        view = step.view
        now_s, until_s = step.now_ms // 1000, until_ms // 1000
        self.later -= self.between(self.now_s + 1, until_s + 1, view)
        self.write(view)
        by_hour: dict[int, list[bytes]] = {}
        for key, row in _rows_of(now_s // HOUR_S, until_s // HOUR_S + 1, view):
            by_hour.setdefault(_hour_of(key), []).append(row)
            view.delete(key)
        for hour, found in by_hour.items():
            left = {at: count for at, count in _sum(found).items() if not now_s < hour * HOUR_S + at <= until_s}
            if any(left.values()):
                view.put(_key(hour), _packed(Counter(left)))
            self._rows[hour] = 1
        self._hot.clear()
        self.now_s = now_s
        self._first_hour = min(self._first_hour, now_s // HOUR_S)

    def drop_before(self, step: Step, second: int) -> None:
        """Delete a bounded number of rows of whole hours before this second."""
        view = step.view
        hour = second // HOUR_S
        if hour <= self._first_hour:
            return
        self.write(view)
        found = view.scan(_key(self._first_hour), _key(hour), limit=DROP_ROWS, max_bytes=_NO_LIMIT)
        for key, _ in found:
            view.delete(key)
            self._hot.pop(_hour_of(key), None)
            self._rows.pop(_hour_of(key), None)
        if len(found) < DROP_ROWS:
            self._first_hour = hour

    def write(self, view: View) -> None:
        """Put all changes since the last call into rows."""
        self._count()
        folded: list[int] = []
        for hour, changes in self._changes.items():
            view.put(_key(hour, self._next_seq), _packed(changes))
            self._rows[hour] = known = self._rows.pop(hour, 0) + 1
            if known >= FOLD_ROWS or _is_drawn(self._next_seq):
                folded.append(hour)
            self._next_seq += 1
        self._changes = {}
        for hour in folded:
            self._fold(hour, view)
        while len(self._rows) > COUNTED_HOURS:
            del self._rows[next(iter(self._rows))]

    def _fold(self, hour: int, view: View) -> None:
        """Fold the rows of an hour into one."""
        found = _rows_of(hour, hour + 1, view)
        for key, _ in found:
            view.delete(key)
        total = self._hot.get(hour) or _sum([row for _, row in found])
        if any(total.values()):
            view.put(_key(hour), _packed(total))
        self._rows[hour] = 1

    # -- lookups --------------------------------------------------------------------------------------------------

    def between(self, start_s: int, stop_s: int, view: View) -> int:
        """Return the number of messages with start <= second < stop."""
        return sum(count for _, count in self.seconds(start_s, stop_s, view))

    def seconds(self, start_s: int, stop_s: int, view: View) -> list[tuple[int, int]]:
        """Return (second, messages) for each second with messages and start <= second < stop, in ascending order."""
        return [one for hour in self.hours(start_s, stop_s, view) for one in hour]

    def hours(self, start_s: int, stop_s: int, view: View) -> Iterator[list[tuple[int, int]]]:
        """Yield the result of `seconds` hour by hour, so that the caller can yield in between. The counts must not
        change meanwhile."""
        if stop_s <= start_s:
            return
        first, last = start_s // HOUR_S, (stop_s - 1) // HOUR_S
        if stop_s - start_s <= 2:
            yield [(s, n) for s in range(start_s, stop_s) if (n := self._hour(s // HOUR_S, view)[s % HOUR_S])]
            return
        hours: Iterable[tuple[int, Seconds]]
        if last - first < HOT_HOURS // 2:
            hours = ((hour, self._hour(hour, view)) for hour in range(first, last + 1))
        else:
            hours = self._many(first, last + 1, view)
        for hour, seconds in hours:
            yield [
                (second, seconds[at])
                for at in sorted(seconds)
                if start_s <= (second := hour * HOUR_S + at) < stop_s and seconds[at]
            ]

    def _hour(self, hour: int, view: View) -> Seconds:
        """Return the counts of an hour, from the cache or from its rows."""
        self._count()
        seconds = self._hot.get(hour)
        if seconds is None:
            seconds = _sum([row for _, row in _rows_of(hour, hour + 1, view)])
            seconds.update(self._changes.get(hour, {}))
            self._hot[hour] = seconds
            if len(self._hot) > HOT_HOURS:
                self._hot.popitem(last=False)
        else:
            self._hot.move_to_end(hour)
        return seconds

    def _many(self, first: int, stop: int, view: View) -> Iterator[tuple[int, Seconds]]:
        """Yield the hours with messages, in order."""
        self._count()
        changed = deque(sorted([hour for hour in self._changes if first <= hour < stop]))
        for hour, found in groupby(_each_row(first, stop, view), lambda row: _hour_of(row[0])):
            while changed and changed[0] < hour:
                yield changed[0], self._changes[changed.popleft()]
            seconds = _sum([row for _, row in found])
            if changed and changed[0] == hour:
                seconds.update(self._changes[changed.popleft()])
            yield hour, seconds
        for hour in changed:
            yield hour, self._changes[hour]


def _key(hour: int, seq: int = 0) -> bytes:
    """Return the key of a row of an hour."""
    return rows.COUNTS + hour.to_bytes(4, "big") + seq.to_bytes(8, "big")


def _is_drawn(seq: int) -> bool:
    """Return whether this row causes a fold. One row in `FOLD_ROWS` does, for any pattern of written hours."""
    # The finalizer of splitmix64 (Steele, Lea, Flood 2014): numbers at equal distances get random-looking hashes, too.
    seq = (seq ^ (seq >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    seq = (seq ^ (seq >> 27)) * 0x94D049BB133111EB & _MASK
    return (seq ^ (seq >> 31)) % FOLD_ROWS == 0


def _hour_of(key: bytes) -> int:
    """Return the hour in the key of a row."""
    return int.from_bytes(key[1:5], "big")


def _rows_of(first: int, stop: int, view: View) -> list[Row]:
    """Return the rows of the hours from `first` to `stop` (exclusive)."""
    return view.scan(_key(first), _key(stop), limit=_NO_LIMIT, max_bytes=_NO_LIMIT)


def _each_row(first: int, stop: int, view: View) -> Iterator[Row]:
    """Yield the result of `_rows_of`, reading some rows at a time."""
    start, end = _key(first), _key(stop)
    while True:
        found = view.scan(start, end, limit=ROWS_AT_ONCE, max_bytes=_NO_LIMIT)
        yield from found
        if len(found) < ROWS_AT_ONCE:
            return
        start = found[-1][0] + b"\0"


def _packed(seconds: Seconds) -> bytes:
    """Return the row of changes of an hour."""
    return rows.pack(*[part for at, count in sorted(seconds.items()) if count for part in (at, count)])


def _sum(found: list[bytes]) -> Seconds:
    """Return the sum of the changes in rows of an hour."""
    total: Seconds = Counter()
    for row in found:
        flat = rows.unpack(row)
        total.update(dict(zip(flat[::2], flat[1::2], strict=True)))
    return total
