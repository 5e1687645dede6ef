"""Run a compacted partition in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.model.batch import Column, encode
from sandq.model.names import COMPACTED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.view import Row
from sandq.partition.kv.compacted import CompactedPartition
from sandq.partition.kv.key_table import Value
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import ALL, Bench, T

Write = tuple[str, str | None]
"""Key and value. The value None deletes the key."""


def writes_of(
    writes: Sequence[Write],
    *,
    expected: Sequence[bytes | None] | None = None,
    ttls: Sequence[int | None] | None = None,
    headers: Sequence[bytes | None] | None = None,
) -> bytes:
    columns: dict[int, Any] = {
        Column.KEY: [key.encode() for key, _ in writes],
        Column.VALUE: [None if value is None else value.encode() for _, value in writes],
    }
    for column, cells in (
        (Column.EXPECTED_VERSION, expected),
        (Column.TTL_MS, ttls),
        (Column.HEADERS, headers),
    ):
        if cells is not None:
            columns[column] = list(cells)
    return encode(columns)


class KeyBench(Bench):
    kind = COMPACTED
    machine_class = CompactedPartition
    machine: CompactedPartition

    def write(self, *writes: Write, at: int = 0, **columns: Any) -> Any:
        """Append a batch of writes. Return (base, count), or `Stored` if the writes have conditions (`expected`)."""
        command = c.Append(writes_of(writes, **columns), split="expected" in columns)
        result = self.apply(at, command)[0]
        if isinstance(result, Exception):
            raise result
        return result

    def set(self, key: str, value: str | None, at: int = 0, ttl: int | None = None) -> bytes:
        """Write one key and return its new version."""
        columns = {} if ttl is None else {"ttls": [ttl]}
        version: bytes = self.write((key, value), at=at, **columns)[0]
        return version

    def set_if(self, key: str, value: str | None, expected: bytes, at: int = 0) -> tuple[bool, bytes]:
        """Write a key if it has the version `expected`. Return whether it was stored, and the current version."""
        stored = self.write((key, value), at=at, expected=[expected])
        assert isinstance(stored, Stored)
        return not stored.refused, stored.offsets

    def get(self, key: str, at: int = 0) -> str | None:
        row = self.machine.keys.get(key.encode(), T + at, self.view)
        return None if row is None else Value.load(row).value.decode()

    def all(self, at: int = 0) -> dict[str, str]:
        found, following = self.scan(b"", None, limit=ALL, max_bytes=ALL, at=at)
        assert following is None
        return {key.decode(): Value.load(row).value.decode() for key, row in found}

    def scan(
        self, start: bytes, stop: bytes | None, *, limit: int, max_bytes: int, at: int = 0
    ) -> tuple[list[Row], bytes | None]:
        """Return a page of rows, and the key at which the next page begins (None: no next page)."""
        parts = self.machine.keys.scan(start, stop, limit=limit, max_bytes=max_bytes, now_ms=T + at, view=self.view)
        rows: list[Row] = []
        following: bytes | None = None
        for part, behind in parts:
            rows += part
            following = behind
        return rows, following

    def log(self) -> list[tuple[bytes, str, str | None]]:
        """Return (offset, key, value) of all messages in the log, in order."""
        found = self.view.scan(*rows.tag_bounds(rows.LOG), limit=ALL, max_bytes=ALL)
        entries = []
        for key, value in found:
            entry = rows.log_entry(key, value)
            entries += self.read([rows.Range(entry.first, entry.length)])
        return [
            (
                message.offset,
                message.fields[Column.KEY].decode(),
                message.fields[Column.VALUE].decode() if Column.VALUE in message.fields else None,
            )
            for message in entries
        ]
