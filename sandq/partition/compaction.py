"""Compaction: of every key the log of a compacted topic keeps the last write, and what was written lately.

A pass goes through the log from its beginning to where `history` begins, a bounded part at a time. A write that
another one of its key came after goes; so does a deletion that is older than `tombstone_retention`. What stays keeps
its offset, so groups and watchers go on where they were. A row with a message that some group holds stays as it is
until the next pass. Behind it no deletion goes in that pass: it may be of what stayed, and who reads from the beginning
would hear of the value, and never that it is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from sandq.model import offsets
from sandq.model.batch import Batch, Column

from . import rows
from .book import GroupBook
from .delivery import decode_fields, load_message
from .holdings import Lease, Waiting
from .keys import KeyTable
from .log import MessageLog
from .rows import Fields, LogEntry
from .view import Row, View
from .writes import Writes

STEP_ROWS = 1000
STEP_MESSAGES = 5000
STEP_BYTES = 4 << 20
LOOK_MS = 1000
"""Between two looks whether a pass is worth it."""
IDLE_MS = 5000
"""After so long without a write a pass is worth it whatever there is to lose."""
NEW_LEAST = 100_000
NEW_FACTOR = 4
"""Before that a pass waits for so many new messages, and for so many times as many as the last one left."""
AGAIN_MS = 60_000
"""After a pass that had to keep what was held: before deletions are looked at again."""


class Compactor:
    def __init__(self, log: MessageLog, book: GroupBook, keys: KeyTable) -> None:
        self.due_ms: int | None = None
        """When to look next."""
        self.forgotten = offsets.FIRST
        """Deletions at or below this offset may be gone: who reads on from before it may have missed one."""
        self.removed = offsets.FIRST
        """Of what stood up to here something may be gone: who reads on from before it may have missed that."""
        self._log = log
        self._book = book
        self._keys = keys
        self._wrote_ms = 0
        self._at: bytes | None = None
        """A pass is under way, and through up to here."""
        self._until_s = 0
        """The pass, or the last one, goes up to this second."""
        self._left = 0
        """Messages that the last pass left."""
        self._kept_ms: int | None = None
        """When the earliest of the deletions was made that the pass, or the last one, kept."""
        self._is_behind = False
        """The pass has kept, for it was held, what nobody wants: deletions behind it stay."""

    def state(self) -> tuple[object, ...]:
        return (
            self.due_ms,
            self.forgotten,
            self.removed,
            self._wrote_ms,
            self._at,
            self._until_s,
            self._left,
            self._kept_ms,
            self._is_behind,
        )

    def load(self, state: list[object]) -> None:
        self.due_ms, self.forgotten, self.removed, self._wrote_ms, *rest = state  # type: ignore[assignment]
        self._at, self._until_s, self._left, self._kept_ms, self._is_behind = rest  # type: ignore[assignment]

    def appended(self, now_ms: int) -> None:
        """There is more than before."""
        self._wrote_ms = now_ms
        if self.due_ms is None or self.due_ms > now_ms + LOOK_MS:
            self.due_ms = now_ms + LOOK_MS

    def step(self, now_ms: int, view: View) -> None:
        """A bounded part of a pass, when one is worth it."""
        if self.due_ms is None or self.due_ms > now_ms:
            return
        if self._at is None and not self._begins(now_ms, view):
            self.due_ms = self._next_look_ms(now_ms)
            return
        self.due_ms = now_ms
        self._pass_on(now_ms, view)

    # -- when -----------------------------------------------------------------------------------------------------

    @property
    def _history_ms(self) -> int:
        return int(self._book.settings["history_ms"])

    @property
    def _retention_ms(self) -> int:
        return int(self._book.settings["tombstone_retention_ms"])

    def _begins(self, now_ms: int, view: View) -> bool:
        """Whether a pass is worth it; then it begins."""
        until_s = max((now_ms - self._history_ms) // 1000, self._until_s)
        new = self._log.counts.between(self._until_s, until_s, view)
        enough = new > 0 if self._is_quiet(now_ms) else new >= max(NEW_LEAST, NEW_FACTOR * self._left)
        if not enough and not self._forgets(now_ms):
            return False
        self._at, self._until_s, self._left, self._kept_ms = offsets.FIRST, until_s, 0, None
        self._is_behind = False
        return True

    def _forgets(self, now_ms: int) -> bool:
        """Whether deletions that the last pass kept are old enough by now, and have been for a while: of those that
        come one after the other many go at once."""
        retention_ms = self._retention_ms
        return self._kept_ms is not None and self._kept_ms + retention_ms + retention_ms // 16 < now_ms

    def _next_look_ms(self, now_ms: int) -> int | None:
        times = []
        if self._log.state.messages > self._left:
            idle_ms = max(self._wrote_ms + IDLE_MS, now_ms + LOOK_MS)
            times.append(max(idle_ms, self._wrote_ms + self._history_ms + 1000) if self._is_quiet(now_ms) else idle_ms)
        if self._kept_ms is not None:
            times.append(max(self._kept_ms + self._retention_ms * 17 // 16 + 1, now_ms + LOOK_MS))
        return min(times, default=None)

    def _is_quiet(self, now_ms: int) -> bool:
        return now_ms - self._wrote_ms >= IDLE_MS

    # -- a pass ---------------------------------------------------------------------------------------------------

    def _pass_on(self, now_ms: int, view: View) -> None:
        assert self._at is not None
        start = rows.after(rows.log_key(self._at))
        stop = rows.log_key(offsets.pack(self._until_s * 1000, 0, 0, 0))
        found = view.scan(start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
        held = _Held(self._book)
        seen = 0
        for row in found:
            if seen >= STEP_MESSAGES:
                return
            entry = rows.log_entry(*row)
            self._left += self._clean(row, entry, held, now_ms, view)
            self._at = rows.last_of(entry)
            seen += entry.length
        if len(found) < STEP_ROWS and sum([len(value) for _, value in found]) < STEP_BYTES:
            self._at = None

    def _clean(self, row: Row, entry: LogEntry, held: _Held, now_ms: int, view: View) -> int:
        """Take out of a row what is not wanted any more. How many messages it has then."""
        count, run = entry.length, offsets.run(entry.first, entry.length)
        writes = _writes(row, entry, view)
        wanted = [self._is_wanted(offset, *write, now_ms, view) for offset, write in zip(run, writes, strict=True)]
        gone = [at for at, is_wanted in enumerate(wanted) if not is_wanted]
        if not gone:
            return count
        if held.any_between(entry.first, run[-1]):
            self._is_behind = True
            self._keeps(now_ms - self._retention_ms + AGAIN_MS)
            return count
        for at in gone:
            key, is_deletion = writes[at]
            if is_deletion and self._keys.is_latest(key, run[at], view):
                self._keys.forget_deletion(key, view)
                self.forgotten = max(self.forgotten, run[at])
        self.removed = max(self.removed, run[gone[-1]])
        created_ms = rows.LOG_HEADER.unpack_from(row[1])[3]
        fields = _fields(row, entry, view) if len(gone) < count else [{}] * count
        self._log.delete_row(row[0], view)
        view.delete(rows.PAYLOAD + entry.first)
        size = 0
        for offset, each, is_wanted in zip(run, fields, wanted, strict=True):
            if is_wanted:
                stored, left = rows.message_rows(offset, created_ms, each, None, {})
                size += left.size
                for key, value in stored:
                    view.put(key, value)
        self._count([run[at] for at in gone], entry, size, view)
        return count - len(gone)

    def _is_wanted(self, offset: bytes, key: bytes, is_deletion: bool, now_ms: int, view: View) -> bool:
        if not self._keys.is_latest(key, offset, view):
            return False
        if not is_deletion:
            return True
        made_ms = offsets.deliver_ms(offset)
        if self._is_behind:
            self._keeps(max(made_ms, now_ms - self._retention_ms + AGAIN_MS))
            return True
        if made_ms + self._retention_ms > now_ms:
            self._keeps(made_ms)
            return True
        return False

    def _keeps(self, made_ms: int) -> None:
        """A deletion of then stays in this pass."""
        self._kept_ms = made_ms if self._kept_ms is None else min(self._kept_ms, made_ms)

    def _count(self, gone: list[bytes], entry: LogEntry, size: int, view: View) -> None:
        """These messages of a row are no more, and what is left of it has another size."""
        state, made_ms = self._log.state, offsets.deliver_ms(entry.first)
        self._log.counts.add(made_ms, -len(gone))
        state.messages -= len(gone)
        state.bytes += size - entry.size
        for group in self._book.groups.values():
            reader = group.reader
            reader.look_anew(rows.last_of(entry))
            passed = sum([offset <= group.cursor for offset in gone])
            if passed and reader.passed is not None:
                reader.passed -= passed
            if passed and reader.taken[0] == made_ms // 1000:
                reader.taken = reader.taken[0], reader.taken[1] - passed
                self._book.put_group(group, view)


class _Held:
    """What is leased, or waits, in any group."""

    def __init__(self, book: GroupBook) -> None:
        holders: list[Lease | Waiting] = []
        for group in book.groups.values():
            holders += [*group.leases.values(), *group.waiting.values()]
        spans = sorted((base, offsets.shift(base, n - 1)) for holder in holders for base, n in holder.ranges)
        self._firsts = [first for first, _ in spans]
        self._lasts = list(accumulate([last for _, last in spans], max))
        """The greatest of those up to there."""

    def any_between(self, first: bytes, last: bytes) -> bool:
        """Whether one of these messages may be."""
        at = bisect_right(self._firsts, last)
        return at > 0 and self._lasts[at - 1] >= first


def _writes(row: Row, entry: LogEntry, view: View) -> list[tuple[bytes, bool]]:
    """The key of each message of a row, and whether it is a deletion."""
    value = row[1]
    if value[0] == rows.KIND_MESSAGE:
        fields = load_message(view, entry.first, value).fields
        return [(fields[Column.KEY], Column.VALUE not in fields)]
    writes = Writes.of(Batch.parse(value[rows.LOG_HEADER.size :]))
    return [(key, value is None) for key, value in zip(writes.keys, writes.values, strict=True)]


def _fields(row: Row, entry: LogEntry, view: View) -> list[Fields]:
    """What each message of a row holds."""
    value = row[1]
    if value[0] == rows.KIND_MESSAGE:
        return [load_message(view, entry.first, value).fields]
    return decode_fields(Batch.parse(value[rows.LOG_HEADER.size :]))
