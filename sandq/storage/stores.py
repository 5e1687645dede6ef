"""The interface to the ordered rows of a node, and its in-memory fake. The real implementation is `LevelStores`.

Keys and values are bytes. Keys sort bytewise and begin with a store number (keys.py); the empty key is not used.

After a crash, a **prefix** of the sequence of writes survives. It includes at least all writes before the last `flush`.
So a row never appears without the rows that were written with it or before it.

One thread writes. Meanwhile, `flush` and `compact` may run on another thread, and reads on any thread. Errors:
`StorageFailed` if a write or a flush fails; all later writes and flushes then fail as well, so that the sequence of
writes has no gap. `Corruption`, which names the file, from any call that finds damage.
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
"""A row to put, or to delete if its value is None."""


class StoresSnapshot(Protocol):
    """The rows as they were at one moment, unaffected by later writes.

    For any thread, one call at a time. Raises `ClosedError` once the snapshot or the stores are closed."""

    def scan(self, start: bytes, stop: bytes, *, limit: int | None = None, max_bytes: int | None = None) -> list[Row]:
        """Return rows, see `Stores.scan`."""
        ...

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size on the disk of the rows with start <= key < stop.

        Rows that are not flushed yet may be missing."""
        ...

    def close(self) -> None:
        """Close the snapshot, so that the space of rows that were deleted since then can be freed. Can be called
        repeatedly."""
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
        """Return the rows with start <= key < stop in key order; with `reverse` in reverse order.

        Stop after `limit` rows, or after the row that brings the size of the values to `max_bytes`."""
        ...

    def vacant(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """Return for each range (start <= key < stop; sorted by start) whether it has no row.

        If there are large rows nearby, this is far cheaper than a `get` or `scan` of each range. It steps over each
        deleted row once."""
        ...

    def snapshot(self) -> StoresSnapshot:
        """Return a view of the present rows, which later writes do not change."""
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Write all changes or none, in their order, after all earlier writes. Nothing is synced."""
        ...

    def flush(self) -> None:
        """Make all writes before this call durable."""
        ...

    def compact(self, start: bytes, stop: bytes) -> None:
        """Free the disk space of rows deleted between `start` and `stop`. This can take long."""
        ...

    def approximate_bytes(self) -> int:
        """Return the approximate size on the disk."""
        ...

    def close(self) -> None:
        """Close the stores and their snapshots. Wait for a snapshot that is being read."""
        ...


class MemoryStores:
    """`Stores` in memory, a fake for tests. `crash` returns the stores that the next start finds.

    One thread may write rows while others read. Each call sees a whole write or nothing of it, as with LevelDB.
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
        """Return the stores after a crash: a random prefix of the writes, with all writes before the last flush."""
        return self.after(rng.randint(0, len(self._unflushed)))

    def after(self, writes: int) -> MemoryStores:
        """Return the stores after a crash in which only the first `writes` writes since the last flush survived."""
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
