"""Store writes to keys, plain ones and compare-and-set: in the log, and as the values of their keys.

A compare-and-set names the version that its key is to have, or `ABSENT`. It is stored only if the key has that version
in the very moment of its place in the log: one Raft entry after the other, one message after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition import commands as c
from sandq.partition.base.view import View
from sandq.partition.kv.key_table import KeyTable, Value
from sandq.partition.log.message_log import MessageLog, Stored
from sandq.partition.reader.pieces import decode_fields
from sandq.partition.shared_state import SharedState

ABSENT = b""
"""What a compare-and-set names whose key is to have no value."""
CHANGED = "changed"
"""Why a compare-and-set is refused; with it comes the version that there is, or `NO_VERSION`."""
NO_VERSION = bytes(offsets.OFFSET_BYTES)


class Writes(NamedTuple):
    """A batch that a compacted topic takes, by column."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None
    ttls_ms: Sequence[int | None] | None

    @classmethod
    def of(cls, batch: Batch) -> Writes:
        """Take a batch apart that `produce_validation.check_writes` lets through."""
        return cls(
            batch.bytes_column(Column.KEY),  # type: ignore[arg-type]  # none of them is None
            batch.values(),
            batch.bytes_column(Column.HEADERS),
            batch.int_column(Column.TTL_MS),
        )


class KeyWriter:
    def __init__(self, shared: SharedState, log: MessageLog, keys: KeyTable) -> None:
        self._shared = shared
        self._log = log
        self._keys = keys

    def store_all(
        self, index: int, place: int, batch: Batch, writes: Writes, now_ms: int, floor_ms: int, view: View
    ) -> tuple[bytes, int]:
        """Store a batch of plain writes as one row; its first offset, and how many there are."""
        stored = self._log.append(index, place, c.Append(batch.raw), now_ms, floor_ms, view)
        assert not isinstance(stored, Stored), "nothing here comes later"
        # Of several writes of a key only the last is seen.
        versions = offsets.run(*stored)
        latest = {key: at for at, key in enumerate(writes.keys)}
        for key, at in self._shared.in_turns(list(latest.items())):
            self._set(key, versions[at], writes, at, now_ms, view)
        return stored

    def compare_and_set(
        self, index: int, place: int, batch: Batch, writes: Writes, now_ms: int, floor_ms: int, view: View
    ) -> Stored:
        """Store of a batch the writes whose keys have the versions they name, and those that name none.

        One at a time, for the next may be conditioned on this one."""
        column = offsets.run(offsets.pack(floor_ms, index, place, self._log.partition), batch.count)
        refused: list[tuple[int, str]] = []
        messages = decode_fields(batch)
        for at, fields in enumerate(self._shared.in_turns(messages)):
            key = writes.keys[at]
            expected = fields.pop(Column.EXPECTED_VERSION, None)
            present = self._keys.version(key, now_ms, view)
            if expected is not None and expected != (present or ABSENT):
                column[at] = present or NO_VERSION
                refused.append((at, CHANGED))
                continue
            self._log.append_one(column[at], fields, now_ms, view)
            self._set(key, column[at], writes, at, now_ms, view)
        return Stored(b"".join(column), refused)

    def _set(self, key: bytes, version: bytes, writes: Writes, at: int, now_ms: int, view: View) -> None:
        value, headers, ttls = writes.values[at], writes.headers, writes.ttls_ms
        if value is None:
            self._keys.delete(key, version, view)
            return
        ttl_ms = ttls[at] if ttls is not None else None
        if ttl_ms is None:
            ttl_ms = self._shared.settings["key_ttl_ms"]
        expires_ms = 0 if ttl_ms is None else min(now_ms + ttl_ms, offsets.U48_MAX)
        self._keys.put(key, Value(version, value, headers[at] if headers is not None else None, expires_ms), view)
