"""Messages of a group that wait for their next attempt in rows only.

A group holds only a window of its waiting messages in memory (`groups.spilling`). Each other one is *spilled*: it has a
row by time, which contains its state, and a row by offset, which leads to the first. The message itself is in a `KEPT`
row of the group, so it never keeps the log from being trimmed. One more row has their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View
from sandq.partition.records.leases import Waiting, merged
from sandq.partition.records.packed_ranges import PackedRanges

_TIME_BYTES: Final = 6
_NO_LIMIT: Final = 1 << 40


class SpilledMessages:
    """The spilled messages of one group. Only `groups.spilling` and clock resets change them."""

    def __init__(self, group_id: int) -> None:
        self.messages = 0
        self._group_id = group_id
        self._by_time = _First(*rows.group_bounds(rows.SPILLED_AT, group_id))
        start, stop = rows.group_bounds(rows.SPILLED, group_id)
        self._by_offset = _First(rows.after(start), stop)  # the row at `start` has the number

    def load(self, view: View) -> None:
        """Load the number of spilled messages, and find the first ones."""
        row = view.get(rows.of_group(rows.SPILLED, self._group_id))
        self.messages = 0 if row is None else rows.unpack(row)[0]
        if self.messages:
            self._by_time.find(view)
            self._by_offset.find(view)

    @property
    def next_ms(self) -> int | None:
        """Time of the first spilled message, in ms: of its recall or its expiry, whichever is first. None if there is
        none."""
        key = self._by_time.key
        return None if key is None else time_of(key)

    @property
    def first(self) -> bytes | None:
        """The lowest offset of a spilled message. None if there is none."""
        key = self._by_offset.key
        return None if key is None else key[-offsets.OFFSET_BYTES :]

    def latest_due_ms(self, view: View) -> int:
        """Return the time of the last spilled message, in ms. 0 if there is none."""
        if not self.messages:
            return 0
        start, stop = rows.group_bounds(rows.SPILLED_AT, self._group_id)
        return max(
            [time_of(key) for key, _ in view.scan(start, stop, limit=1, max_bytes=_NO_LIMIT, reverse=True)], default=0
        )

    def holds(self, offset: bytes, view: View) -> bool:
        """Return whether a message is spilled."""
        return self.messages > 0 and view.get(self._offset_key(offset)) is not None

    def find(self, offset: bytes, view: View) -> Waiting | None:
        """Return the state of a spilled message, as a waiting entry that is in no table. None if the message is not
        spilled."""
        at_ms = self._time_in(offset, view)
        if at_ms is None:
            return None
        row = view.get(self._time_key(at_ms, offset))
        assert row is not None, "a spilled message has a row by time"
        entry = load_state(row, [Range(offset, 1)])
        entry.expires_ms = at_ms if at_ms < entry.due_ms else None
        return entry

    def put(
        self, step: Step, entry: Waiting, messages: Iterable[tuple[bytes, int | None]], *, not_before_ms: int = 0
    ) -> None:
        """Spill messages with the state of a waiting entry. `messages`: pairs of an offset and the time at which that
        message expires, in ms (None: never). The group keeps each message in a row already. `not_before_ms`: the
        messages are not recalled before this time, unless they expire."""
        view, row = step.view, state_row(entry)
        for offset, expires_ms in messages:
            at_ms = max(entry.due_ms, not_before_ms)
            at_ms = at_ms if expires_ms is None else min(at_ms, expires_ms)
            key, offset_key = self._time_key(at_ms, offset), self._offset_key(offset)
            view.put(key, row)
            view.put(offset_key, rows.pack(at_ms))
            self._by_time.note_put(key)
            self._by_offset.note_put(offset_key)
            self.messages += 1
        self._store_number(step)

    def remove(self, step: Step, offset: bytes) -> Waiting | None:
        """Delete the rows of a spilled message, and return its state. None if the message is not spilled."""
        at_ms = self._time_in(offset, step.view)
        if at_ms is None:
            return None
        entry = self.find(offset, step.view)
        self._remove(step, [(at_ms, offset)])
        return entry

    def take_due(self, step: Step, until_ms: int, most: int, *, merges: bool) -> list[Waiting]:
        """Delete the rows of up to `most` messages whose time is `until_ms` or earlier, the earliest first. Return
        their states, one entry for each run of messages with the same state. `merges`: consecutive offsets become one
        range."""
        if self.next_ms is None or self.next_ms > until_ms:
            return []
        start, stop = rows.group_bounds(rows.SPILLED_AT, self._group_id)
        if until_ms < offsets.U48_MAX:
            stop = start + (until_ms + 1).to_bytes(_TIME_BYTES, "big")
        found = step.view.scan(self._by_time.key or start, stop, limit=most, max_bytes=_NO_LIMIT)
        self._remove(step, [(time_of(key), key[-offsets.OFFSET_BYTES :]) for key, _ in found])
        return [load_state(row, _ranges(run, merges=merges)) for row, run in _runs(found)]

    def after(self, offset: bytes, most: int, view: View) -> list[bytes]:
        """Return up to `most` spilled messages above an offset, in the order of their offsets."""
        if not self.messages:
            return []
        start = rows.after(self._offset_key(offset))
        stop = rows.group_bounds(rows.SPILLED, self._group_id)[1]
        return [key[5:] for key, _ in view.scan(start, stop, limit=most, max_bytes=_NO_LIMIT)]

    def before(self, offset: bytes, most: int, view: View) -> list[bytes]:
        """Return up to `most` spilled messages below an offset, the highest offset first."""
        if not self.messages:
            return []
        start = rows.after(rows.of_group(rows.SPILLED, self._group_id))
        found = view.scan(start, self._offset_key(offset), limit=most, max_bytes=_NO_LIMIT, reverse=True)
        return [key[5:] for key, _ in found]

    def _time_in(self, offset: bytes, view: View) -> int | None:
        """Return the time in the row of a message by offset, in ms. None if the message is not spilled."""
        row = view.get(self._offset_key(offset)) if self.messages else None
        return None if row is None else int(rows.unpack(row)[0])

    def _remove(self, step: Step, messages: list[tuple[int, bytes]]) -> None:
        """Delete the rows of messages, which are pairs of a time in ms and an offset."""
        view = step.view
        time_keys = [self._time_key(at_ms, offset) for at_ms, offset in messages]
        offset_keys = [self._offset_key(offset) for _, offset in messages]
        self._by_time.leave_out(time_keys, view)
        self._by_offset.leave_out(offset_keys, view)
        view.delete_all(time_keys)
        view.delete_all(offset_keys)
        self.messages -= len(messages)
        self._store_number(step)

    def _store_number(self, step: Step) -> None:
        """Put the row with the number of spilled messages."""
        key = rows.of_group(rows.SPILLED, self._group_id)
        if self.messages:
            step.view.put(key, rows.pack(self.messages))
        else:
            step.view.delete(key)

    def _offset_key(self, offset: bytes) -> bytes:
        """Return the key of a message's row by offset."""
        return rows.of_group(rows.SPILLED, self._group_id, offset)

    def _time_key(self, at_ms: int, offset: bytes) -> bytes:
        """Return the key of a message's row by time."""
        return rows.of_group(rows.SPILLED_AT, self._group_id, at_ms.to_bytes(_TIME_BYTES, "big") + offset)


class _First:
    """The first key of a range of rows, kept up to date at each change."""

    def __init__(self, start: bytes, stop: bytes) -> None:
        self.key: bytes | None = None
        self._start = start
        """No row has a lower key. A scan from the beginning of the range would step over all rows deleted so far."""
        self._stop = stop

    def find(self, view: View) -> None:
        """Read the first key."""
        found = view.scan(self._start, self._stop, limit=1, max_bytes=_NO_LIMIT)
        self.key = found[0][0] if found else None
        self._start = self.key or self._start

    def note_put(self, key: bytes) -> None:
        """Note that a row was put."""
        if self.key is None or key < self.key:
            self.key = self._start = key

    def leave_out(self, keys: Sequence[bytes], view: View) -> None:
        """Note that rows will be deleted."""
        gone = frozenset(keys)
        if self.key in gone:
            found = view.scan(self._start, self._stop, limit=len(gone) + 1, max_bytes=_NO_LIMIT)
            self.key = next((key for key, _ in found if key not in gone), None)
            self._start = self.key or self._start


def state_row(entry: Waiting) -> bytes:
    """Return the state of a waiting entry without its messages, as a row by time has it."""
    return rows.pack(entry.due_ms, *entry.apart([]).fields())


def load_state(row: bytes, ranges: list[Range]) -> Waiting:
    """Return the state in a row by time, as an entry with these messages."""
    due_ms, *fields = rows.unpack(row)
    entry = Waiting.of_fields(due_ms, 0, fields)
    entry.ranges, entry.kept = PackedRanges(ranges), True
    return entry


def _runs(found: list[Row]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield (row, offsets) for each run of rows by time with the same contents."""
    last, run = b"", list[bytes]()
    for key, row in found:
        # Within one time, offsets rise. An entry's ranges must be sorted.
        offset = key[-offsets.OFFSET_BYTES :]
        if run and (row != last or offset < run[-1]):
            yield last, run
            run = []
        last = row
        run.append(offset)
    if run:
        yield last, run


def _ranges(messages: list[bytes], *, merges: bool) -> list[Range]:
    """Return messages as ranges. `merges`: consecutive offsets become one range."""
    return merged(messages) if merges else [Range(offset, 1) for offset in messages]


def time_of(key: bytes) -> int:
    """Return the time in the key of a row by time, in ms."""
    return int.from_bytes(key[5 : 5 + _TIME_BYTES], "big")
