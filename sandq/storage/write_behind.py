"""Stores behind which another thread writes: who hands rows over does not wait while LevelDB makes room for them.

LevelDB stops who writes for as long as it takes to write a memtable to its files, a third of a second and more beside
large messages. So `write` lays the changes over the stores, in memory, and returns. Who reads sees them there, exactly
as if they were written; another thread writes them, in their order, and takes them away (`write_one`).

    write ->  batch  batch  batch (being written)  ->  the stores below
    read  ->  newest first ........................    then these

What is handed over together is written together, so after a crash the stores hold a prefix, as without this. Small
changes that wait are gathered in batches of up to `BATCH_BYTES`. Nothing here refuses rows for want of room, as what
they come of has been promised to somebody: who takes new messages in asks `takes` first.

One thread hands over and reads; `write_one`, `write_out`, `flush`, `compact` and snapshots are for any thread.
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
"""Changes are added to what waits to be written up to here: LevelDB copies a batch as a whole."""
ROW_BYTES: Final = 200
"""What a change takes in memory beside its key and value, about."""
STORE_SHARE: Final = 1 / 2
"""Of all that may wait to be written, what one store may have."""
_ALL: Final = 1 << 60


class WriteBehindStores:
    """`Stores` over others, which are written to by who calls `write_one`."""

    def __init__(
        self, base: Stores, limit_bytes: float, on_written: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """`limit_bytes`: what may wait to be written, of all stores. `on_written` is told how long each write of the
        stores took, on the thread that wrote."""
        self.limit_bytes = limit_bytes
        self._base = base
        self._on_written = on_written
        self._batches: tuple[_Batch, ...] = ()
        """Handed over and not written, the oldest first; another tuple with each change, so that who reads one sees
        what there was at one moment."""
        self._sizes: dict[bytes, int] = {}
        """Bytes of them by store."""
        self.bytes = 0
        """Of all of them."""
        self._written = 0
        """Batches."""
        self._failure: BaseException | None = None
        self._changed = threading.Lock()
        """Held for moments, to change any of these."""
        self._writing = threading.Lock()
        """Held by who writes."""

    # -- what waits -------------------------------------------------------------------------------------------------

    def takes(self, prefix: bytes, beside_bytes: int = 0) -> bool:
        """Whether more should be promised to the store with this prefix, `beside_bytes` of which are on their way here:
        it has less than its share. Once all stores together have no room left, that is an equal part for each that has
        something waiting, so who has little goes on, up to twice the room. For any thread."""
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
        """Whether who brings many rows of its own accord should wait. For any thread."""
        return self.bytes >= self.limit_bytes / 2

    @property
    def progress(self) -> int | None:
        """What changes with each batch that is written; None while none waits. For any thread."""
        return self._written if self._batches else None

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change]) -> None:
        """As `Stores.write`, but for the writing. The changes of a store stand together, or count for others. Raises
        what a write raised since."""
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
        """Write all that was handed over before. Blocks; raises what a write raised."""
        batches = self._batches
        last = batches[-1] if batches else None
        while last is not None and not last.is_written:
            self.write_one()
        if self._failure is not None:
            raise self._failure

    def write_one(self) -> None:
        """Write the oldest batch, if there is one. Blocks; raises what a write raised, once and for all."""
        with self._writing:
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                if not self._batches:
                    return
                batch = self._batches[0]
                batch.is_closed = True
            began_s = time.perf_counter()
            try:
                self._base.write(batch.changes)
            except BaseException as failure:
                self._failure = failure
                raise
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
    # What waits is looked at first: what is written meanwhile is then seen twice, and never not at all.

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
        """What waits is not written: the log has it."""
        self._base.close()


class _Batch:
    """Changes that are written together, in their order."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.sizes: dict[bytes, int] = {}
        """Bytes by store."""
        self.size = 0
        self.is_closed = False
        """Nothing is added any more: it is being written, or somebody keeps it."""
        self.is_written = False
        self._rows: tuple[int, dict[bytes, bytes | None]] = (0, {})
        """What the first ones come to: looked up only where somebody reads."""
        self._keys: tuple[int, list[bytes]] = (0, [])
        """Their keys in order."""

    def add(self, changes: Sequence[Change], sizes: Mapping[bytes, int]) -> None:
        self.changes += changes
        for store, size in sizes.items():
            self.sizes[store] = self.sizes.get(store, 0) + size
            self.size += size

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """By key, the last value of each."""
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
        """Whether it changes something there."""
        keys = self._sorted()
        at = bisect_left(keys, start)
        return at < len(keys) and keys[at] < stop

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys that it changes there."""
        keys = self._sorted()
        return keys[bisect_left(keys, start) : bisect_left(keys, stop)]


class _Snapshot:
    """`StoresSnapshot` with what was not written yet when it was made."""

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
    """What these batches, the oldest first, make of the rows with start <= key < stop."""
    changed: dict[bytes, bytes | None] = {}
    for batch in batches:
        rows = batch.rows
        for key in batch.between(start, stop):
            changed[key] = rows[key]
    return changed


def _sizes_by_store(changes: Sequence[Change]) -> dict[bytes, int]:
    """What changes take in memory, by store. Raises ValueError for an empty key."""
    sizes: dict[bytes, int] = {}
    at = 0
    while at < len(changes):
        store = changes[at][0][:STORE_PREFIX_BYTES]
        stop = len(changes)
        if not changes[-1][0].startswith(store):  # most often all are of one
            stop = next(after for after in range(at, stop) if not changes[after][0].startswith(store))
        part = changes[at:stop]
        keys, values = [key for key, _ in part], [value for _, value in part if value is not None]
        if not all(keys):
            raise ValueError("an empty key")
        size = ROW_BYTES * len(part) + sum(map(len, keys)) + sum(map(len, values))
        sizes[store] = sizes.get(store, 0) + size
        at = stop
    return sizes
