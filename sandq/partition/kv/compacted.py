"""The compacted partition: a log of writes to keys, and the latest value of each key.

It is a timer partition whose messages are all due immediately, so groups, leases and retries work as in every topic. A
message with a value sets the value of its key, a message without one deletes its key. Invariants in addition to those
of the timer partition:

* A key has the value of the last write to it in the log. Its version is the offset of that write.
* A compare-and-set is stored only if the key has the version that it expects: `kv.writes`.
* An expired value is deleted by a message in the log, like any other value. Readers stop seeing it when it expires.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import InvalidRequest
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step, latest_offset
from sandq.partition.base.view import View
from sandq.partition.kv.compaction import Compactor
from sandq.partition.kv.key_table import KeyTable
from sandq.partition.kv.writes import KeyWriter, Writes
from sandq.partition.log.appends import Stored
from sandq.partition.produce_validation import check_writes
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import Message
from sandq.partition.state_machine import Handlers, TimerPartition

COMPACTION = b"c"
RESTING_MS = 10_000
"""Time in ms. The partition counts as compacted if the next compaction is due later than this."""


class CompactedPartition(TimerPartition):
    def __init__(self, partition: int, settings: dict[str, Any], look_aheads: LookAheads | None = None) -> None:
        super().__init__(partition, settings, look_aheads)
        self.keys = KeyTable(self.log.garbage)
        self._lease_grants.is_latest = self._is_latest
        self._writer = KeyWriter(self.shared, self.appends, self.keys)
        self.compactor = Compactor(self.shared, self.groups, self.log, self.keys)

    def write_state(self, view: View) -> None:
        if not self.is_filling:
            self.keys.write(view)
            view.put(COMPACTION, rows.pack(*self.compactor.state()))
        super().write_state(view)

    @classmethod
    def load(
        cls, partition: int, settings: dict[str, Any], view: View, look_aheads: LookAheads | None = None
    ) -> CompactedPartition:
        # A compacted topic uses the tag of overlays for deletions, whose keys may look like offsets.
        view.has_overlays = False
        self = super().load(partition, settings, view, look_aheads)
        assert isinstance(self, CompactedPartition)
        if self.is_filling:
            return self
        self.keys.load(view)
        row = view.get(COMPACTION)
        if row is not None:
            self.compactor.load(rows.unpack(row))
        return self

    def _is_latest(self, message: Message, view: View) -> bool:
        """Return whether a message is the last write of its key. This may be a deletion that the key table has
        forgotten."""
        key = message.fields[Column.KEY]
        is_gone = self.keys.write_of(key, view) is None
        is_deletion = message.fields.get(Column.VALUE) is None
        return is_deletion if is_gone else self.keys.is_latest(key, message.offset, view)

    # -- apply ----------------------------------------------------------------------------------------------------

    def _store(self, step: Step, command: c.Append) -> tuple[bytes, int] | Stored:
        """Store the writes of a batch, and note them for compaction."""
        batch = Batch.parse(command.batch)
        check_writes(batch)
        self.shared.yield_now()
        writes = Writes.of(batch)
        self.shared.yield_now()
        self.compactor.appended(step, batch.count)
        store = self._writer.compare_and_set if command.split else self._writer.store_all
        return store(step, batch, writes)

    def needs_no_disk(self, entry: c.Entry) -> bool:
        if not super().needs_no_disk(entry):
            return False
        batches = [Batch.parse(command.batch) for command in entry.commands if isinstance(command, c.Append)]
        keys = [key for batch in batches for key in batch.bytes_column(Column.KEY) or ()]
        return self.keys.knows(keys) and not any([None in batch.values() for batch in batches])

    def _cancel(self, step: Step, command: c.Cancel) -> Any:
        raise _not_here()

    def _start_job(self, step: Step, command: c.StartJob) -> dict[str, Any]:
        if command.kind in ("cancel", "move"):
            raise _not_here()
        return super()._start_job(step, command)

    def _hold(self, step: Step, command: c.Hold) -> bytes:
        raise InvalidRequest(
            "a compacted topic is not trimmed but compacted, which no hold stops: "
            "its `history` says how long every write stays"
        )

    def _configure(self, step: Step, command: c.Configure) -> None:
        self.compactor.check_again(step)
        super()._configure(step, command)

    def _schedule(self, step: Step, command: c.ScheduleCommand) -> list[Any]:
        raise InvalidRequest("a compacted topic has no schedules: a timer, priority or fair topic has")

    def _reset_clock(self, step: Step, command: c.ClockReset) -> dict[str, Any]:
        raise InvalidRequest(
            "the clock of a compacted topic is not set back: the version of a value is its place in the log, which "
            "would fall; read its keys and put them into a new topic"
        )

    def _move(self, step: Step, command: c.Move) -> Any:
        raise _not_here()

    def end(self) -> bytes:
        """Return an offset at or above all present messages, and below all messages that later entries store."""
        return latest_offset(self.floor_ms, self.applied_index + self.index_base + 1, 0)

    @property
    def _keys_status(self) -> tuple[int, int, int | None, bool]:
        """The number of keys, the bytes of their values, the next expiry in ms, and whether everything is compacted."""
        due_ms = self.compactor.due_ms
        is_resting = due_ms is None or due_ms > self.now_ms + RESTING_MS
        return self.keys.live, self.keys.bytes, self.keys.next_expiry_ms, is_resting

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def _upkeep_ms(self, view: View) -> int | None:
        times = (super()._upkeep_ms(view), self.keys.next_expiry_ms, self.compactor.due_ms)
        return min((at for at in times if at is not None), default=None)

    def _upkeep(self, step: Step) -> None:
        super()._upkeep(step)
        self.compactor.compact(step)
        over = self.keys.expired(step.now_ms, step.view)
        if over:
            deletions = Batch.parse(encode({Column.VALUE: [None] * len(over), Column.KEY: over}))
            self._writer.store_all(step, deletions, Writes.of(deletions))
            self.compactor.appended(step, len(over))

    HANDLERS: ClassVar[Handlers] = TimerPartition.HANDLERS | {
        c.Cancel: _cancel,
        c.Move: _move,
        c.StartJob: _start_job,
        **dict.fromkeys(c.SCHEDULE_COMMANDS, _schedule),
        c.ClockReset: _reset_clock,
        c.Hold: _hold,
        c.Configure: _configure,
    }


def _not_here() -> InvalidRequest:
    """Return the error for cancels and moves in a compacted topic."""
    return InvalidRequest("what a compacted topic holds is not cancelled or moved: put or delete its key")
