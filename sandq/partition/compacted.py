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

from . import commands as c
from . import rows
from .compaction import Compactor
from .delivery import decode_fields
from .keys import KeyTable, Value
from .log import Stored
from .rows import Fields
from .timer import TimerPartition
from .view import View

ABSENT = b""
"""What a write names that is conditioned on its key having no value."""
CHANGED = "changed"
"""Why a conditioned write is refused; with it comes the version that there is, or `NO_VERSION`."""
NO_VERSION = bytes(offsets.OFFSET_BYTES)
COMPACTION = b"c"
_FOREIGN = (Column.DELIVER_MS, Column.PRIORITY, Column.TENANT, Column.UNIQUE_KEY)


class CompactedPartition(TimerPartition):
    def __init__(self, partition: int, settings: dict[str, Any]) -> None:
        super().__init__(partition, settings)
        self.keys = KeyTable()
        self.compactor = Compactor(self.log, self.book, self.keys)

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
        writes = Batch.parse(command.batch)
        check_writes(writes)
        store = self._store_if if command.split else self._store_all
        self.compactor.appended(self.now_ms)
        return store(index, place, writes, view)

    def _store_all(self, index: int, place: int, writes: Batch, view: View) -> tuple[bytes, int]:
        stored = self.log.append(index, place, c.Append(writes.raw), self.now_ms, self.floor_ms, view)
        assert not isinstance(stored, Stored), "nothing here comes later"
        for version, fields in zip(offsets.run(*stored), decode_fields(writes), strict=True):
            self._write(version, fields, view)
        return stored

    def _store_if(self, index: int, place: int, writes: Batch, view: View) -> Stored:
        """One at a time, for the next may be conditioned on this one."""
        column = offsets.run(offsets.pack(self.floor_ms, index, place, self.partition), writes.count)
        refused: list[tuple[int, str]] = []
        for at, fields in enumerate(decode_fields(writes)):
            expected = fields.pop(Column.EXPECTED_VERSION, None)
            present = self.keys.version(fields[Column.KEY], self.now_ms, view)
            if expected is not None and expected != (present or ABSENT):
                column[at] = present or NO_VERSION
                refused.append((at, CHANGED))
                continue
            self.log.append_one(column[at], fields, self.now_ms, view)
            self._write(column[at], fields, view)
        return Stored(b"".join(column), refused)

    def _write(self, version: bytes, fields: Fields, view: View) -> None:
        key, value = fields[Column.KEY], fields.get(Column.VALUE)
        if value is None:
            self.keys.delete(key, view)
            return
        ttl_ms = fields.get(Column.TTL_MS, self.settings["key_ttl_ms"])
        expires_ms = 0 if ttl_ms is None else min(self.now_ms + ttl_ms, offsets.U48_MAX)
        self.keys.put(key, Value(version, value, fields.get(Column.HEADERS), expires_ms), view)

    def _other(self, index: int, place: int, command: c.Command, view: View) -> Any:
        if isinstance(command, c.Cancel) or (isinstance(command, c.StartJob) and command.kind in ("cancel", "move")):
            raise _not_here()
        return super()._other(index, place, command, view)

    def _move(self, index: int, place: int, command: c.Move, view: View) -> Any:
        raise _not_here()

    def end(self) -> bytes:
        """Below all that is stored from the next entry on, and not below what is stored by now."""
        return self._latest(self.applied_index + 1, 0)

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
            self._store_all(index, place + used, deletions, view)
            self.compactor.appended(self.now_ms)
        return used + len(over)


def check_writes(writes: Batch) -> None:
    """Raises InvalidRequest unless a batch is one that a compacted topic takes."""
    foreign = [column.name.lower() for column in _FOREIGN if column in writes.columns]
    if foreign:
        raise InvalidRequest(f"a message of a compacted topic has no {foreign[0]}: it is a write, and is done at once")
    keys = writes.bytes_column(Column.KEY)
    if keys is None or not all(keys):
        raise InvalidRequest("every message of a compacted topic has a key, of one byte at least")
    expected = writes.bytes_column(Column.EXPECTED_VERSION) or ()
    if any(version and len(version) != offsets.OFFSET_BYTES for version in expected):
        raise InvalidRequest(f"a version has {offsets.OFFSET_BYTES} bytes; none at all mean that there is no value yet")


def _not_here() -> InvalidRequest:
    return InvalidRequest("what a compacted topic holds is not cancelled or moved: put or delete its key")
