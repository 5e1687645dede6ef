"""The compacted partition: a log of writes to keys, and the latest value of each key.

It is a timer partition whose messages are all due at once, so groups, leases and retries are those of every topic. A
message with a value puts it, one with none deletes its key. Invariants beside those of the timer partition:

* A key has the value of the last write to it in the log; its version is that write's offset.
* A write that is conditioned on a version is stored only if the key has that version in the very moment of its place
  in the log: one Raft entry after the other, one message after the other.
* A value whose time is over is deleted by a message in the log, like any other; nobody sees it from that time on.
"""

from __future__ import annotations

from typing import Any

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import InvalidRequest
from sandq.partition import commands as c
from sandq.partition import rows
from sandq.partition.kv.compaction import Compactor
from sandq.partition.kv.key_table import KeyTable, Value
from sandq.partition.kv.writes import Writes
from sandq.partition.log.message_log import Stored
from sandq.partition.log.pieces import decode_fields
from sandq.partition.produce_validation import check_writes
from sandq.partition.state_machine import TimerPartition
from sandq.partition.view import View

ABSENT = b""
"""What a write names that is conditioned on its key having no value."""
CHANGED = "changed"
"""Why a conditioned write is refused; with it comes the version that there is, or `NO_VERSION`."""
NO_VERSION = bytes(offsets.OFFSET_BYTES)
COMPACTION = b"c"
RESTING_MS = 10_000
"""When compaction has nothing to do for so long, it has done what there was."""


class CompactedPartition(TimerPartition):
    def __init__(self, partition: int, settings: dict[str, Any]) -> None:
        super().__init__(partition, settings)
        self.keys = KeyTable(self.log.garbage)
        self.compactor = Compactor(self.shared, self.groups, self.log, self.keys)

    def write_state(self, view: View) -> None:
        self.keys.write(view)
        view.put(COMPACTION, rows.pack(*self.compactor.state()))
        super().write_state(view)

    @classmethod
    def load(cls, partition: int, settings: dict[str, Any], view: View) -> CompactedPartition:
        self = super().load(partition, settings, view)
        assert isinstance(self, CompactedPartition)
        self.keys.load(view)
        row = view.get(COMPACTION)
        if row is not None:
            self.compactor.load(rows.unpack(row))
        return self

    # -- apply ----------------------------------------------------------------------------------------------------

    def _store(self, index: int, place: int, command: c.Append, view: View) -> tuple[bytes, int] | Stored:
        batch = Batch.parse(command.batch)
        check_writes(batch)
        writes = Writes.of(batch)
        self.compactor.appended(self.now_ms, batch.count)
        if command.split:
            return self._store_if(index, place, batch, writes, view)
        return self._store_all(index, place, batch, writes, view)

    def _store_all(self, index: int, place: int, batch: Batch, writes: Writes, view: View) -> tuple[bytes, int]:
        stored = self.log.append(index, place, c.Append(batch.raw), self.now_ms, self.floor_ms, view)
        assert not isinstance(stored, Stored), "nothing here comes later"
        # Of several writes of a key only the last is seen.
        versions = offsets.run(*stored)
        for key, at in {key: at for at, key in enumerate(writes.keys)}.items():
            self._write(key, versions[at], writes, at, view)
        return stored

    def _store_if(self, index: int, place: int, batch: Batch, writes: Writes, view: View) -> Stored:
        """One at a time, for the next may be conditioned on this one."""
        column = offsets.run(offsets.pack(self.floor_ms, index, place, self.partition), batch.count)
        refused: list[tuple[int, str]] = []
        for at, fields in enumerate(decode_fields(batch)):
            key = writes.keys[at]
            expected = fields.pop(Column.EXPECTED_VERSION, None)
            present = self.keys.version(key, self.now_ms, view)
            if expected is not None and expected != (present or ABSENT):
                column[at] = present or NO_VERSION
                refused.append((at, CHANGED))
                continue
            self.log.append_one(column[at], fields, self.now_ms, view)
            self._write(key, column[at], writes, at, view)
        return Stored(b"".join(column), refused)

    def _write(self, key: bytes, version: bytes, writes: Writes, at: int, view: View) -> None:
        value, headers, ttls = writes.values[at], writes.headers, writes.ttls_ms
        if value is None:
            self.keys.delete(key, version, view)
            return
        ttl_ms = ttls[at] if ttls is not None else None
        if ttl_ms is None:
            ttl_ms = self.settings["key_ttl_ms"]
        expires_ms = 0 if ttl_ms is None else min(self.now_ms + ttl_ms, offsets.U48_MAX)
        self.keys.put(key, Value(version, value, headers[at] if headers is not None else None, expires_ms), view)

    def _other(self, index: int, place: int, command: c.Command, view: View) -> Any:
        if isinstance(command, c.Cancel) or (isinstance(command, c.StartJob) and command.kind in ("cancel", "move")):
            raise _not_here()
        if isinstance(command, c.Hold):
            raise InvalidRequest(
                "a compacted topic is not trimmed but compacted, which no hold stops: "
                "its `history` says how long every write stays"
            )
        if isinstance(command, c.Configure):
            self.compactor.look_anew(self.now_ms)
        return super()._other(index, place, command, view)

    def _move(self, index: int, place: int, command: c.Move, view: View) -> Any:
        raise _not_here()

    def end(self) -> bytes:
        """Below all that is stored from the next entry on, and not below what is stored by now."""
        return self._latest(self.applied_index + 1, 0)

    @property
    def _keys_status(self) -> tuple[int, int, int | None, bool]:
        due_ms = self.compactor.due_ms
        is_resting = due_ms is None or due_ms > self.now_ms + RESTING_MS
        return self.keys.live, self.keys.bytes, self.keys.next_expiry_ms, is_resting

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def _upkeep_ms(self) -> int | None:
        times = (super()._upkeep_ms(), self.keys.next_expiry_ms, self.compactor.due_ms)
        return min((at for at in times if at is not None), default=None)

    def _upkeep(self, index: int, place: int, view: View) -> int:
        used = super()._upkeep(index, place, view)
        self.compactor.step(self.now_ms, view)
        over = self.keys.expired(self.now_ms, view)
        if over:
            deletions = Batch.parse(encode({Column.VALUE: [None] * len(over), Column.KEY: over}))
            self._store_all(index, place + used, deletions, Writes.of(deletions), view)
            self.compactor.appended(self.now_ms, len(over))
        return used + len(over)


def _not_here() -> InvalidRequest:
    return InvalidRequest("what a compacted topic holds is not cancelled or moved: put or delete its key")
