"""Stores with a write-behind queue: the thread that changes rows does not wait for LevelDB.

LevelDB blocks a writer while it writes a memtable to its files; with large messages, this takes a third of a second or
more. So `write` only queues the changes in memory and returns. Reads look in the queue first, as if the changes were
written. Another thread writes the queued changes in order, and removes them from the queue (`write_one`).

    write ->  batch  batch  batch (being written)  ->  the base stores
    read  ->  newest first ........................    then the base stores

The changes of one `write` are written together. So after a crash, the base stores have a prefix of the writes, as
without this module. Small pending changes are merged into batches of up to `BATCH_BYTES`. `write` accepts rows even if
the queue is full, because they come from entries that are already acknowledged. Code that accepts new messages calls
`takes` first.

One thread writes and reads. Any thread may use `write_one`, `write_out`, `flush`, `compact` and snapshots.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sandq.model.overlay import Changed, scan_over
from sandq.storage.keys import STORE_PREFIX_BYTES
from sandq.storage.stores import Change, Row, Stores, StoresSnapshot

BATCH_BYTES: Final = 1 << 20
"""Maximum size of a batch, in bytes, to which changes are added, because LevelDB copies whole batches."""
ROW_BYTES: Final = 200
"""Approximate memory of a change, in bytes, in addition to its key and value."""
STORE_SHARE: Final = 1 / 2
"""Share of `limit_bytes` that one store may have in the queue."""
_ALL: Final = 1 << 60


class WriteBehindStores:
    """`Stores` with a queue in front of base stores. Calls of `write_one` write to the base stores."""

    def __init__(
        self, base: Stores, limit_bytes: float, on_written: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """Create it in front of `base`.

        `limit_bytes`: size of the queue, for all stores together. `on_written` is called after each write to the base
        stores with its duration in seconds, on the writing thread."""
        self.limit_bytes = limit_bytes
        self._base = base
        self._on_written = on_written
        self._batches: tuple[_Batch, ...] = ()
        """The queue: batches that are not written yet, oldest first.

        Adding or removing a batch replaces the tuple, so that a reader sees a consistent queue without a lock."""
        self._sizes: dict[bytes, int] = {}
        """Bytes in the queue by store."""
        self.bytes = 0
        """Bytes in the queue, of all stores."""
        self._written = 0
        """Number of batches written so far."""
        self._failure: BaseException | None = None
        self._changed = threading.Lock()
        """Held briefly to change any of the attributes above."""
        self._writing = threading.Lock()
        """Held while a batch is written to the base stores."""

    # -- the queue --------------------------------------------------------------------------------------------------

    def takes(self, prefix: bytes, beside_bytes: int = 0) -> bool:
        """Return whether the store with this prefix may accept more messages. For any thread.

        It may if its bytes in the queue, plus the `beside_bytes` that will be queued next, are below its share. If the
        queue is full, all stores with queued bytes have equal shares, so that stores with few bytes can continue. If
        the queue has twice `limit_bytes`, no store can."""
        if self.bytes >= 2 * self.limit_bytes:
            return False
        size = self._sizes.get(prefix, 0) + beside_bytes
        if not size:
            return True
        if self.bytes < self.limit_bytes:
            return size < STORE_SHARE * self.limit_bytes
        return size < self.limit_bytes / max(len(self._sizes), 1)

    @property
    def is_half_full(self) -> bool:
        """True if background work that writes many rows should wait. For any thread."""
        return self.bytes >= self.limit_bytes / 2

    @property
    def progress(self) -> int | None:
        """A number that changes with each written batch. None if the queue is empty. For any thread."""
        return self._written if self._batches else None

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change]) -> None:
        """Queue changes; see `Stores.write`.

        The changes of one store must be consecutive. Otherwise they may be counted for a different store. Raise the
        error of an earlier write to the base stores, if one failed."""
        sizes = _sizes_by_store(changes)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if not changes:
                return
            last = self._batches[-1] if self._batches else None
            if last is None or last.is_closed or last.size + sum(sizes.values()) > BATCH_BYTES:
                last = _Batch()
                self._batches += (last,)
            last.add(changes, sizes)
            for store, more in sizes.items():
                self._sizes[store] = self._sizes.get(store, 0) + more
                self.bytes += more

    def write_out(self) -> None:
        """Write everything queued before this call. Blocks. Raise the error of a failed write."""
        batches = self._batches
        last = batches[-1] if batches else None
        while last is not None and not last.is_written:
            self.write_one()
        if self._failure is not None:
            raise self._failure

    def write_one(self) -> None:
        """Write the oldest batch, if there is one. Blocks. After a failed write, raise its error on every call."""
        with self._writing:
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                if not self._batches:
                    return
                batch = self._batches[0]
                batch.is_closed = True
            began_s = time.perf_counter()
            # Without the lock `_changed`: reads and new changes continue while LevelDB blocks.
            try:
                self._base.write(batch.changes)
            except BaseException as failure:
                self._failure = failure
                raise
            # Remove the batch only after it is written, so that each read finds its rows in the queue or in the base
            # stores.
            with self._changed:
                batch.is_written = True
                self._batches = self._batches[1:]
                self._written += 1
                self.bytes -= batch.size
                for store, size in batch.sizes.items():
                    self._sizes[store] -= size
                    if not self._sizes[store]:
                        del self._sizes[store]
            self._on_written(time.perf_counter() - began_s)

    def flush(self) -> None:
        self.write_out()
        self._base.flush()

    def compact(self, start: bytes, stop: bytes) -> None:
        self.write_out()
        self._base.compact(start, stop)

    # -- reading ----------------------------------------------------------------------------------------------------
    # Reads take the queue before the base stores: a batch written in between may be seen twice, but is never missed.

    def get(self, key: bytes) -> bytes | None:
        for batch in reversed(self._batches):
            rows = batch.rows
            if key in rows:
                return rows[key]
        return self._base.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
        reverse: bool = False,
    ) -> list[Row]:
        changed = _changed(self._batches, start, stop)
        if not changed:
            return self._base.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)
        most, most_bytes = _ALL if limit is None else limit, _ALL if max_bytes is None else max_bytes
        if not most:
            return []

        def scan(start: bytes, stop: bytes, wanted: int) -> list[Row]:
            return self._base.scan(start, stop, limit=wanted, max_bytes=most_bytes, reverse=reverse)

        return scan_over(scan, changed, start, stop, limit=most, max_bytes=most_bytes, reverse=reverse)

    def vacant(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        batches = self._batches
        vacant = self._base.vacant(ranges)
        if batches:
            for at, (start, stop) in enumerate(ranges):
                if any([batch.has(start, stop) for batch in batches]):
                    vacant[at] = not self.scan(start, stop, limit=1)
        return vacant

    def snapshot(self) -> StoresSnapshot:
        with self._changed:
            batches = self._batches
            if batches:
                batches[-1].is_closed = True
        snapshot = self._base.snapshot()
        return _Snapshot(snapshot, batches) if batches else snapshot

    def approximate_bytes(self) -> int:
        return self._base.approximate_bytes()

    def close(self) -> None:
        """Close the base stores without writing the queue, because the log has its changes."""
        self._base.close()


class _Batch:
    """Changes that are written together, in their order."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.sizes: dict[bytes, int] = {}
        """Bytes of the changes by store."""
        self.size = 0
        self.is_closed = False
        """True if no more changes are added: the batch is being written, or a snapshot uses it."""
        self.is_written = False
        self._rows: tuple[int, dict[bytes, bytes | None]] = (0, {})
        """(number of changes, resulting rows), computed when first read."""
        self._keys: tuple[int, list[bytes]] = (0, [])
        """(number of changes, their sorted keys), computed when first needed."""

    def add(self, changes: Sequence[Change], sizes: Mapping[bytes, int]) -> None:
        self.changes += changes
        for store, size in sizes.items():
            self.sizes[store] = self.sizes.get(store, 0) + size
            self.size += size

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """The last value of each key. None if the key is deleted."""
        count, rows = self._rows
        if count != len(self.changes):
            rows = dict(self.changes)
            self._rows = len(self.changes), rows
        return rows

    def _sorted(self) -> list[bytes]:
        count, keys = self._keys
        if count != len(self.changes):
            keys = sorted(self.rows)
            self._keys = len(self.changes), keys
        return keys

    def has(self, start: bytes, stop: bytes) -> bool:
        """Return whether the batch changes a row with start <= key < stop."""
        keys = self._sorted()
        at = bisect_left(keys, start)
        return at < len(keys) and keys[at] < stop

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the sorted keys with start <= key < stop that the batch changes."""
        keys = self._sorted()
        return keys[bisect_left(keys, start) : bisect_left(keys, stop)]


class _Snapshot:
    """A `StoresSnapshot` of the base stores and of the batches that were queued at that moment."""

    def __init__(self, base: StoresSnapshot, batches: Sequence[_Batch]) -> None:
        self._base = base
        self._batches = batches

    def scan(self, start: bytes, stop: bytes, *, limit: int | None = None, max_bytes: int | None = None) -> list[Row]:
        most, most_bytes = _ALL if limit is None else limit, _ALL if max_bytes is None else max_bytes
        changed = _changed(self._batches, start, stop) if most else {}
        if not changed:
            return self._base.scan(start, stop, limit=limit, max_bytes=max_bytes)

        def scan(start: bytes, stop: bytes, wanted: int) -> list[Row]:
            return self._base.scan(start, stop, limit=wanted, max_bytes=most_bytes)

        return scan_over(scan, changed, start, stop, limit=most, max_bytes=most_bytes, reverse=False)

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        return self._base.approximate_bytes(start, stop)

    def close(self) -> None:
        self._base.close()
        self._batches = ()


def _changed(batches: Sequence[_Batch], start: bytes, stop: bytes) -> Changed:
    """Return the changes of these batches, oldest first, to the rows with start <= key < stop."""
    changed: dict[bytes, bytes | None] = {}
    for batch in batches:
        rows = batch.rows
        for key in batch.between(start, stop):
            changed[key] = rows[key]
    return changed


def _sizes_by_store(changes: Sequence[Change]) -> dict[bytes, int]:
    """Return the memory of changes in bytes, by store. Raise ValueError for an empty key."""
    sizes: dict[bytes, int] = {}
    at = 0
    while at < len(changes):
        store = changes[at][0][:STORE_PREFIX_BYTES]
        stop = len(changes)
        if not changes[-1][0].startswith(store):  # usually all changes belong to one store
            stop = next(after for after in range(at, stop) if not changes[after][0].startswith(store))
        part = changes[at:stop]
        keys, values = [key for key, _ in part], [value for _, value in part if value is not None]
        if not all(keys):
            raise ValueError("an empty key")
        size = ROW_BYTES * len(part) + sum(map(len, keys)) + sum(map(len, values))
        sizes[store] = sizes.get(store, 0) + size
        at = stop
    return sizes
