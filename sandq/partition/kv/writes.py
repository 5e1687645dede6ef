"""Stores writes to keys, in the log and as the values of their keys. A write is plain, or a compare-and-set.

A compare-and-set contains the version that its key must have, or `ABSENT`. It is stored only if the key has that
version at the write's position in the log: Raft entries, and the messages in them, are applied one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition import commands as c
from sandq.partition.base.step import Step
from sandq.partition.kv.key_table import KeyTable, Value
from sandq.partition.log.appends import Appends, Stored
from sandq.partition.reader.pieces import decode_fields
from sandq.partition.shared_state import SharedState

ABSENT = b""
"""Expected version of a compare-and-set whose key must have no value."""
CHANGED = "changed"
"""Reason why a compare-and-set is rejected. The reply also has the present version, or `NO_VERSION`."""
NO_VERSION = bytes(offsets.OFFSET_BYTES)


class Writes(NamedTuple):
    """The columns of a batch for a compacted topic."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None
    ttls_ms: Sequence[int | None] | None

    @classmethod
    def of(cls, batch: Batch) -> Writes:
        """Return the columns of a batch that `produce_validation.check_writes` has accepted."""
        return cls(
            batch.bytes_column(Column.KEY),  # type: ignore[arg-type]  # none of them is None
            batch.values(),
            batch.bytes_column(Column.HEADERS),
            batch.int_column(Column.TTL_MS),
        )


class KeyWriter:
    def __init__(self, shared: SharedState, appends: Appends, keys: KeyTable) -> None:
        self._shared = shared
        self._appends = appends
        self._keys = keys

    def store_all(self, step: Step, batch: Batch, writes: Writes) -> tuple[bytes, int]:
        """Store a batch of plain writes as one row. Return its first offset and the number of writes."""
        stored = self._appends.append(step, c.Append(batch.raw))
        assert not isinstance(stored, Stored), "no message of a compacted topic is delayed"
        # If a key has several writes, only the last is visible.
        versions = offsets.run(*stored)
        latest = {key: at for at, key in enumerate(writes.keys)}
        for key, at in self._shared.in_slices(list(latest.items())):
            self._set(step, key, versions[at], writes, at)
        return stored

    def compare_and_set(self, step: Step, batch: Batch, writes: Writes) -> Stored:
        """Store the writes of a batch whose keys have the expected versions, and the writes without an expected
        version.

        Store them one by one, because a write may depend on the writes before it.
        """
        view, now_ms = step.view, step.now_ms
        column = offsets.run(
            offsets.pack(step.floor_ms, step.index, step.take_positions(batch.count), self._appends.partition),
            batch.count,
        )
        refused: list[tuple[int, str]] = []
        messages = decode_fields(batch)
        for at, fields in enumerate(self._shared.in_slices(messages)):
            key = writes.keys[at]
            expected = fields.pop(Column.EXPECTED_VERSION, None)
            present = self._keys.version(key, now_ms, view)
            if expected is not None and expected != (present or ABSENT):
                column[at] = present or NO_VERSION
                refused.append((at, CHANGED))
                continue
            self._appends.append_one(step, column[at], fields)
            self._set(step, key, column[at], writes, at)
        return Stored(b"".join(column), refused)

    def _set(self, step: Step, key: bytes, version: bytes, writes: Writes, at: int) -> None:
        """Set or delete the value of a key, as the write at position `at` says."""
        value, headers, ttls = writes.values[at], writes.headers, writes.ttls_ms
        if value is None:
            self._keys.delete(step, key, version)
            return
        ttl_ms = ttls[at] if ttls is not None else None
        if ttl_ms is None:
            ttl_ms = self._shared.settings["key_ttl_ms"]
        expires_ms = 0 if ttl_ms is None else min(step.now_ms + ttl_ms, offsets.U48_MAX)
        self._keys.put(step, key, Value(version, value, headers[at] if headers is not None else None, expires_ms))
