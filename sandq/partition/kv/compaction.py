"""Compaction: for every key, the log of a compacted topic keeps the last write, and all recent writes.

A pass visits the log from its beginning to the beginning of `history`, one bounded part at a time. It deletes each
write that has a later write of its key. Other messages keep their offsets, so groups and watchers continue where they
were. If a group holds a message of a row, the row stays as it is until the next pass.

The row of a deletion is removed only `tombstone_retention` after the end of the pass that removed the deleted values. A
reader that began before the end of that pass may have read an old value. It has this much time to reach the deletion.
If a pass left a row as it was, an old value may remain there. From this row on, the pass is *behind*: it removes no
further deletions. Otherwise a reader from the beginning would see the old value, and never its deletion.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, LogEntry
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.kv.key_table import KeyTable
from sandq.partition.kv.writes import Writes
from sandq.partition.log.message_log import MessageLog
from sandq.partition.reader.pieces import decode_fields, load_message
from sandq.partition.records.leases import Lease, Waiting
from sandq.partition.shared_state import SharedState

STEP_ROWS = 1000
STEP_MESSAGES = 5000
STEP_BYTES = 4 << 20
STEP_FACTOR = 2
"""Number of additional messages that a step visits per message written since the last step. So compaction keeps up with
writes."""
STEP_MOST = 65_536
"""Maximum number of messages that a step visits."""
LOOK_MS = 1000
"""Time between two checks whether a pass is worthwhile, in ms."""
IDLE_MS = 5000
"""Time without a write after which every pass is worthwhile, in ms."""
PASS_MS = 600_000
"""Time without a pass after which every pass is worthwhile, in ms."""
BYTES_LEAST = 64 << 20
BYTES_FACTOR = 2
"""A pass is worthwhile if the log has at least `BYTES_LEAST` bytes, and `BYTES_FACTOR` times the bytes of all
values."""
REST_MS = 1
"""Minimum pause after a pass, in ms per message that it left. Otherwise passes would visit all these messages again for
a few new ones."""
NEW_LEAST = 1000
NEW_FACTOR = 4
"""A pass is worthwhile immediately if there are `NEW_LEAST` new messages, and `NEW_FACTOR` times as many as the last
pass left."""
AGAIN_MS = 60_000
"""Time between a pass that is behind and the next one, in ms."""


class Compactor:
    def __init__(self, shared: SharedState, groups: GroupTable, log: MessageLog, keys: KeyTable) -> None:
        self.due_ms: int | None = None
        """Time of the next check or step, in ms."""
        self.forgotten = offsets.FIRST
        """Offset up to which deletions may have been removed. A reader that continues below this offset may have missed
        a deletion. The offset rises with each removed deletion."""
        self.removed = offsets.FIRST
        """Offset up to which any writes may have been removed. It rises with each removed write."""
        self._log = log
        self._shared = shared
        self._groups = groups
        self._keys = keys
        self._wrote_ms = 0
        self._at: bytes | None = None
        """Offset that the current pass has reached. None if no pass is in progress."""
        self._until_s = 0
        """Second at which the current or the last pass ends."""
        self._left = 0
        """Number of messages that the last pass left."""
        self._keeps = False
        """Whether deletions are among the messages that the last pass left."""
        self._behind_s: int | None = None
        """First second in which the current or the last pass has kept unneeded messages, because groups held them."""
        self._fresh = 0
        """Number of messages written since the last step."""
        self._ended_ms = 0
        """Time at which the last pass ended, in ms."""
        self._ripening: tuple[int, int] | None = None
        """(second up to which a pass removed all unneeded messages, time in ms at which the pass ended). Deletions
        before that second are removed `tombstone_retention` after that time."""
        self._ripe_s = 0
        """Deletions before this second may be removed now."""
        self._again_ms: int | None = None
        """Time at which a pass has work even if nothing is written, in ms. None if there is no such time."""

    def state(self) -> tuple[object, ...]:
        """Return the values to store in the row of the compaction."""
        return (
            self.due_ms,
            self.forgotten,
            self.removed,
            self._wrote_ms,
            self._at,
            self._until_s,
            self._left,
            self._keeps,
            self._behind_s,
            self._fresh,
            self._ended_ms,
            self._ripening,
            self._ripe_s,
            self._again_ms,
        )

    def load(self, state: list[object]) -> None:
        """Restore the values that `state` returned."""
        self.due_ms, self.forgotten, self.removed, self._wrote_ms, self._at, *rest = state  # type: ignore[assignment]
        self._until_s, self._left, self._keeps, self._behind_s, self._fresh, *rest = rest  # type: ignore[assignment]
        self._ended_ms, ripening, self._ripe_s, self._again_ms = rest  # type: ignore[assignment]
        self._ripening = None if ripening is None else (ripening[0], ripening[1])  # type: ignore[index]

    def appended(self, step: Step, count: int) -> None:
        """Note that messages were added."""
        now_ms = step.now_ms
        self._wrote_ms = now_ms
        self._fresh += count
        if self.due_ms is None or self.due_ms > now_ms + LOOK_MS:
            self.due_ms = now_ms + LOOK_MS

    def check_again(self, step: Step) -> None:
        """Check again soon, because new settings may have created work."""
        self.due_ms = self._again_ms = step.now_ms

    def compact(self, step: Step) -> None:
        """Do a bounded part of a pass, if one is worthwhile."""
        now_ms = step.now_ms
        if self.due_ms is None or self.due_ms > now_ms:
            return
        if self._at is None and not self._begins(step):
            self.due_ms = self._next_check_ms(now_ms)
            return
        self.due_ms = now_ms
        self._continue_run(step)

    # -- begin and end --------------------------------------------------------------------------------------------

    @property
    def _history_ms(self) -> int:
        return int(self._shared.settings["history_ms"])

    @property
    def _retention_ms(self) -> int:
        return int(self._shared.settings["tombstone_retention_ms"])

    def _begins(self, step: Step) -> bool:
        """Begin a pass if it is worthwhile. Return whether a pass began."""
        now_ms = step.now_ms
        until_s = max((now_ms - self._history_ms) // 1000, self._until_s)
        is_again = self._again_ms is not None and self._again_ms <= now_ms
        if not is_again and not self._is_worth_it(now_ms, until_s, step.view):
            return False
        if self._ripening is not None and self._ripening[1] + self._retention_ms <= now_ms:
            self._ripe_s, self._ripening = self._ripening[0], None
        self._at, self._until_s, self._left = offsets.FIRST, until_s, 0
        self._keeps, self._behind_s = False, None
        return True

    def _is_worth_it(self, now_ms: int, until_s: int, view: View) -> bool:
        """Return whether a pass up to second `until_s` would delete enough, or nothing else is to do."""
        log, keys = self._log, self._keys
        if not self._has_garbage:
            return False
        new = log.counts.between(self._until_s, until_s, view)
        if not new:
            return False
        if new >= max(NEW_LEAST, NEW_FACTOR * self._left):
            return True
        if now_ms < self._rested_ms:
            return False
        is_large = log.state.bytes >= max(BYTES_LEAST, BYTES_FACTOR * keys.bytes)
        return is_large or self._is_quiet(now_ms) or now_ms - self._ended_ms >= PASS_MS

    def _next_check_ms(self, now_ms: int) -> int | None:
        """Return when to check again whether a pass is worthwhile, in ms; None: not before the next write."""
        times = []
        if self._has_garbage and self._log.state.messages > self._left:
            idle_ms = max(self._wrote_ms + IDLE_MS, now_ms + LOOK_MS, self._rested_ms)
            times.append(max(idle_ms, self._wrote_ms + self._history_ms + 1000) if self._is_quiet(now_ms) else idle_ms)
        if self._again_ms is not None:
            times.append(max(self._again_ms, now_ms + LOOK_MS))
        return min(times, default=None)

    @property
    def _has_garbage(self) -> bool:
        """Whether the log contains older values of keys, or deletions."""
        return self._log.state.messages != self._keys.live or self._keys.deletions > 0

    @property
    def _rested_ms(self) -> int:
        """Time in ms at which the pause after the last pass ends."""
        return self._ended_ms + REST_MS * self._left

    def _is_quiet(self, now_ms: int) -> bool:
        """Return whether nothing was written for `IDLE_MS`."""
        return now_ms - self._wrote_ms >= IDLE_MS

    def _end_compaction(self, step: Step) -> None:
        """Record that all messages up to `_until_s` were checked."""
        now_ms = step.now_ms
        self._at, self._ended_ms, self._again_ms = None, now_ms, None
        if self._ripening is None:
            self._ripening = self._until_s if self._behind_s is None else self._behind_s, now_ms
        if self._behind_s is not None:
            self._again_ms = max(now_ms + AGAIN_MS, self._rested_ms)
        elif self._keeps:
            self._again_ms = self._ripening[1] + self._retention_ms

    # -- one run --------------------------------------------------------------------------------------------------

    def _continue_run(self, step: Step) -> None:
        """Do a bounded part of the pass in progress."""
        view = step.view
        assert self._at is not None
        stop = rows.log_key(offsets.pack(self._until_s * 1000, 0, 0, 0))
        held = _Held(self._groups)
        most, self._fresh = min(STEP_MESSAGES + STEP_FACTOR * self._fresh, STEP_MOST), 0
        seen = 0
        while seen < most:
            found = view.scan(rows.after(rows.log_key(self._at)), stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
            for row in found:
                entry = rows.log_entry(*row)
                self._left += self._clean(step, row, entry, held)
                self._at = rows.last_of(entry)
                seen += entry.length
                if seen >= most:
                    return
            if len(found) < STEP_ROWS and sum([len(value) for _, value in found]) < STEP_BYTES:
                self._end_compaction(step)
                return

    def _clean(self, step: Step, row: Row, entry: LogEntry, held: _Held) -> int:
        """Delete unneeded messages from a row. Return how many are left."""
        view = step.view
        count, run = entry.length, offsets.run(entry.first, entry.length)
        writes = _writes(row, entry, view)
        wanted = [self._is_wanted(offset, *write, view) for offset, write in zip(run, writes, strict=True)]
        gone = [at for at, is_wanted in enumerate(wanted) if not is_wanted]
        if not gone:
            return count
        if held.any_between(entry.first, run[-1]):
            # A group holds a message of this row, so the row stays until the next pass.
            if self._behind_s is None:
                self._behind_s = offsets.deliver_ms(entry.first) // 1000
            return count
        for at in gone:
            key, is_deletion = writes[at]
            if is_deletion and self._keys.is_latest(key, run[at], view):
                self._keys.forget_deletion(step, key)
                self.forgotten = _risen(self.forgotten, run[at])
        self.removed = _risen(self.removed, run[gone[-1]])
        created_ms = rows.LOG_HEADER.unpack_from(row[1])[3]
        fields = _fields(row, entry, view) if len(gone) < count else [{}] * count
        self._log.delete_row(step, row[0], len(row[1]))
        view.delete(rows.PAYLOAD + entry.first)
        # Put the remaining messages back, in single-message rows.
        size = 0
        for offset, each, is_wanted in zip(run, fields, wanted, strict=True):
            if is_wanted:
                stored, left = rows.message_rows(offset, created_ms, each, None, {})
                size += left.size
                for key, value in stored:
                    view.put(key, value)
        self._count(step, [run[at] for at in gone], entry, size)
        return count - len(gone)

    def _is_wanted(self, offset: bytes, key: bytes, is_deletion: bool, view: View) -> bool:
        """Return whether a write must stay: the last write of its key, if that is a value or a recent deletion."""
        if not self._keys.is_latest(key, offset, view):
            return False
        if is_deletion and (self._behind_s is not None or offsets.deliver_ms(offset) // 1000 >= self._ripe_s):
            self._keeps = True
            return True
        return not is_deletion

    def _count(self, step: Step, gone: list[bytes], entry: LogEntry, size: int) -> None:
        """Update all numbers for the deleted messages of a row. `size`: bytes of the rest of the row."""
        state, made_ms = self._log.state, offsets.deliver_ms(entry.first)
        self._log.counts.add(made_ms, -len(gone))
        state.messages -= len(gone)
        state.bytes += size - entry.size
        for group in self._groups.by_id.values():
            reader = group.reader
            reader.drop_cache(rows.last_of(entry))
            group.note_change()
            passed = sum([offset <= group.cursor for offset in gone])
            if passed and reader.passed is not None:
                reader.passed -= passed
            if passed and reader.taken[0] == made_ms // 1000:
                reader.taken = reader.taken[0], reader.taken[1] - passed
                self._groups.store(step, group)


def _risen(mark: bytes, offset: bytes) -> bytes:
    """Return a mark for a write that was removed at `offset`. The result is above `mark`, because watchers may have
    seen `mark` already."""
    return offset if offset > mark else (int.from_bytes(mark, "big") + 1).to_bytes(offsets.OFFSET_BYTES, "big")


class _Held:
    """The messages that are leased or wait in any group."""

    def __init__(self, groups: GroupTable) -> None:
        holders: list[Lease | Waiting] = []
        for group in groups.by_id.values():
            holders += [*group.leases.values(), *group.waiting.values()]
        spans = sorted((base, offsets.shift(base, n - 1)) for holder in holders for base, n in holder.ranges)
        self._firsts = [first for first, _ in spans]
        self._lasts = list(accumulate([last for _, last in spans], max))
        """For each span: the greatest last message of all spans up to this one."""

    def any_between(self, first: bytes, last: bytes) -> bool:
        """Return whether any held message may be between `first` and `last`, both included."""
        at = bisect_right(self._firsts, last)
        return at > 0 and self._lasts[at - 1] >= first


def _writes(row: Row, entry: LogEntry, view: View) -> list[tuple[bytes, bool]]:
    """Return the key of each message of a row, and whether it is a deletion."""
    value = row[1]
    if value[0] == rows.KIND_MESSAGE:
        fields = load_message(view, entry.first, value).fields
        return [(fields[Column.KEY], Column.VALUE not in fields)]
    writes = Writes.of(Batch.parse(value[rows.LOG_HEADER.size :]))
    return [(key, value is None) for key, value in zip(writes.keys, writes.values, strict=True)]


def _fields(row: Row, entry: LogEntry, view: View) -> list[Fields]:
    """Return the fields of each message of a row."""
    value = row[1]
    if value[0] == rows.KIND_MESSAGE:
        return [load_message(view, entry.first, value).fields]
    return decode_fields(Batch.parse(value[rows.LOG_HEADER.size :]))
