"""The port to the ordered rows of a node, and its memory twin. The real one is `LevelStores`.

Keys and values are bytes; keys sort bytewise and begin with a store number (keys.py); the empty key is not
used. What survives a crash is a **prefix** of the writes, in their order, that holds at least everything
written before the last `flush`: so a row never appears without what was written together with it or before
it.

One thread writes; `flush` and `compact` may run in another one meanwhile, reads in any. Errors:
`StorageFailed` from a write or a flush (every later write and flush fails too: a hole in the order of writes
must not become visible); `Corruption` naming the file from whatever meets damage.
"""

from __future__ import annotations

import bisect
import random
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sandq.model.errors import ClosedError
from sandq.storage.level_stores import LevelStores

__all__ = ["Change", "LevelStores", "MemoryStores", "Row", "Stores", "StoresSnapshot"]

Row = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""A row to put, or (value None) to delete."""


class StoresSnapshot(Protocol):
    """The rows as they stood at one moment, whatever is written afterwards. For any thread, one call at a time.
    Raises `ClosedError` once it, or the stores, were closed."""

    def scan(self, start: bytes, stop: bytes, *, limit: int | None = None, max_bytes: int | None = None) -> list[Row]:
        """As `Stores.scan`."""
        ...

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Size on the disk of the rows with start <= key < stop, roughly: rows that no flush has seen yet may not
        count."""
        ...

    def close(self) -> None:
        """What was deleted meanwhile can be given back from here on. Again: does nothing."""
        ...


class Stores(Protocol):
    """All rows of a node."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
        reverse: bool = False,
    ) -> list[Row]:
        """Rows with start <= key < stop in key order (`reverse`: backwards, beginning below `stop`). Ends
        after `limit` rows, or with the row that brings the values returned to `max_bytes`."""
        ...

    def vacant(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """Say of each range (start <= key < stop; in the order of their starts) whether it holds no row. Beside a large
        row that is far less work than `get` or `scan` of each; but deleted rows are walked over, each once."""
        ...

    def snapshot(self) -> StoresSnapshot:
        """What has been written so far, to be read at leisure."""
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """All changes or none, in their order, after everything written before. Not synced."""
        ...

    def flush(self) -> None:
        """Everything written before the call is durable when it returns."""
        ...

    def compact(self, start: bytes, stop: bytes) -> None:
        """Give back the room of what was deleted between `start` and `stop`. May take long."""
        ...

    def approximate_bytes(self) -> int:
        """Size on the disk, roughly."""
        ...

    def close(self) -> None:
        """Ends its snapshots too; one that is being read is waited for."""
        ...


class MemoryStores:
    """`Stores` in memory. `crash` gives what the next start finds.

    One thread writes rows while others read: each call sees all of a write or nothing, as LevelDB's do.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._lock = threading.Lock()
        self._flushed: dict[bytes, bytes] = dict(rows)
        self._unflushed: list[list[Change]] = []
        self._rows = dict(self._flushed)
        self._keys = sorted(self._rows)
        self._snapshots: weakref.WeakSet[MemorySnapshot] = weakref.WeakSet()

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
        reverse: bool = False,
    ) -> list[Row]:
        with self._lock:
            return _scan(self._rows, self._keys, start, stop, limit, max_bytes, reverse)

    def vacant(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        return [not self.scan(start, stop, limit=1) for start, stop in ranges]

    def snapshot(self) -> MemorySnapshot:
        with self._lock:
            snapshot = MemorySnapshot(self._rows)
        self._snapshots.add(snapshot)
        return snapshot

    def write(self, changes: Sequence[Change]) -> None:
        batch = [(bytes(key), value if value is None else bytes(value)) for key, value in changes]
        if any(not key for key, _ in batch):
            raise ValueError("an empty key")
        self._unflushed.append(batch)
        with self._lock:
            for key, value in batch:
                if value is not None:
                    if key not in self._rows:
                        bisect.insort(self._keys, key)
                    self._rows[key] = value
                elif self._rows.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]

    def flush(self) -> None:
        for batch in self._unflushed:
            _apply(self._flushed, batch)
        self._unflushed.clear()

    def compact(self, start: bytes, stop: bytes) -> None:
        pass

    def approximate_bytes(self) -> int:
        with self._lock:
            return sum(len(key) + len(value) for key, value in self._rows.items())

    def close(self) -> None:
        for snapshot in self._snapshots:
            snapshot.close()

    def crash(self, rng: random.Random) -> MemoryStores:
        """What a restart finds: some prefix of the writes, at or after the last flush."""
        return self.after(rng.randint(0, len(self._unflushed)))

    def after(self, writes: int) -> MemoryStores:
        """What a restart finds when so many writes after the last flush survived."""
        rows = dict(self._flushed)
        for batch in self._unflushed[:writes]:
            _apply(rows, batch)
        return MemoryStores(rows.items())


class MemorySnapshot:
    """`StoresSnapshot` of `MemoryStores`: a copy."""

    def __init__(self, rows: Mapping[bytes, bytes]) -> None:
        self._rows = dict(rows)
        self._keys = sorted(self._rows)
        self._closed = False

    def scan(self, start: bytes, stop: bytes, *, limit: int | None = None, max_bytes: int | None = None) -> list[Row]:
        if self._closed:
            raise ClosedError("the snapshot of the stores was closed")
        return _scan(self._rows, self._keys, start, stop, limit, max_bytes, False)

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        return sum(len(key) + len(value) for key, value in self.scan(start, stop))

    def close(self) -> None:
        self._closed = True
        self._rows, self._keys = {}, []


def _scan(
    content: Mapping[bytes, bytes],
    keys: Sequence[bytes],
    start: bytes,
    stop: bytes,
    limit: int | None,
    max_bytes: int | None,
    reverse: bool,
) -> list[Row]:
    first, last = bisect.bisect_left(keys, start), bisect.bisect_left(keys, stop)
    positions = range(last - 1, first - 1, -1) if reverse else range(first, last)
    rows: list[Row] = []
    size = 0
    for position in positions:
        if (limit is not None and len(rows) >= limit) or (max_bytes is not None and rows and size >= max_bytes):
            break
        key = keys[position]
        rows.append((key, content[key]))
        size += len(rows[-1][1])
    return rows


def _apply(rows: dict[bytes, bytes], changes: Sequence[Change]) -> None:
    for key, value in changes:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
