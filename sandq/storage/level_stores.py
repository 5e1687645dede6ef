"""`Stores` (stores.py) over LevelDB, with the binding of leveldb.py.

How durability and error detection are ensured (measured with LevelDB 1.22 and 1.23; every point has a test):

- LevelDB's own log is deleted before each open (level_check.py), so every write is `sync=False`.
- `flush` is `CompactRange("", "")`. It switches the memtable and waits until it is written as a table. It then searches
  for tables with the empty key; none has it, so no table is rewritten. LevelDB reports no error from this call. The
  logs show that it succeeded: LevelDB deletes a log only after a synced MANIFEST says that it is not needed.
- plyvel's `Iterator` silently ends at a damaged block if no readable row follows; its `RawIterator` raises. Checksums
  are verified on every read (docs/storage-format.md has the cost).
- Closing the database while another thread reads from a plyvel snapshot crashes the process. So each snapshot has a
  lock, and `close` closes the snapshots first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from sandq.model.errors import ClosedError, Corruption, SandqError, StorageFailed
from sandq.storage import level_check, leveldb
from sandq.storage.files import DIRECTORY_MODE, flock, sync_directory

WRITE_BUFFER_BYTES = 16 << 20
LOCK = "SANDQ-LOCK"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error codes of a full disk. LevelDB reports only their text."""
_LOG_REMOVAL_S = 30.0
"""Seconds that LevelDB may take to delete a log after a flush. It normally does so before the flush returns."""


class LevelStores:
    """A LevelDB directory. A missing directory is created; with `create=False`, it raises `Corruption`.

    Raises `DataDirInUse` if another process has it open."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            if not create:
                raise Corruption(f"the stores {self.path} are missing", file=str(self.path))
            self.path.mkdir(DIRECTORY_MODE, parents=True)
            sync_directory(self.path.parent)
        self._failure: SandqError | None = None
        self._closed = False
        self._snapshots: weakref.WeakSet[LevelSnapshot] = weakref.WeakSet()
        self._snapshots_lock = threading.Lock()
        self._lock = flock(self.path / LOCK)
        try:
            self._db = self._open(create)
        except BaseException:
            self._lock.close()
            raise

    def _open(self, create: bool) -> leveldb.DB:
        exists = level_check.check_directory(self.path)
        if not exists and not create:
            raise Corruption(f"the stores {self.path} hold no database", file=str(self.path))
        level_check.remove_logs(self.path)
        try:
            db = leveldb.DB(
                str(self.path),
                create_if_missing=not exists,
                paranoid_checks=True,
                write_buffer_size=WRITE_BUFFER_BYTES,
                compression=None,
            )
        except leveldb.CorruptionError as error:
            raise self._corrupt(error) from error
        except leveldb.Error as error:
            raise self._failed("open", error) from error
        try:
            # Sync the directory, because LevelDB created, renamed and removed files while opening.
            sync_directory(self.path)
            self._mark = level_check.write_mark(self.path)
        except BaseException:
            db.close()
            raise
        return db

    # reading

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key, verify_checksums=True)
        except leveldb.Error as error:
            raise self._read_error(error) from error
        return value

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        limit: int | None = None,
        max_bytes: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        if start >= stop or limit == 0:
            return []
        try:
            with self._db.raw_iterator(verify_checksums=True) as rows:
                rows.seek(stop if reverse else start)
                if reverse:
                    if rows.valid():
                        rows.prev()
                    else:
                        rows.seek_to_last()
                return _collect(rows, start, stop, limit, max_bytes, reverse)
        except leveldb.Error as error:
            raise self._read_error(error) from error

    def vacant(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        vacant: list[bool] = []
        at: bytes | None = b""
        """Key of the first row at or after the last seek position; None if there is none."""
        try:
            # An iterator reads a block only once while seeks stay in it; `get` reads it each time. No value is copied.
            with self._db.raw_iterator(verify_checksums=True) as rows:
                for start, stop in ranges:
                    if at is not None and at < start:
                        rows.seek(start)
                        at = rows.key() if rows.valid() else None
                    vacant.append(at is None or at >= stop)
        except leveldb.Error as error:
            raise self._read_error(error) from error
        return vacant

    def snapshot(self) -> LevelSnapshot:
        with self._snapshots_lock:
            if self._closed:
                raise ClosedError(f"the stores in {self.path} were closed")
            snapshot = LevelSnapshot(self._db, self._read_error)
            self._snapshots.add(snapshot)
        return snapshot

    # writing

    def write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._check()
        batch = self._db.write_batch()
        put, delete = batch.put, batch.delete
        for key, value in changes:
            if not key:
                raise ValueError("an empty key")
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            batch.write()
        except leveldb.Error as error:
            raise self._write_error("write", error) from error

    def flush(self) -> None:
        self._check()
        try:
            before = level_check.log_numbers(self.path)
            self._db.compact_range(start=b"", stop=b"")
            # The next write, even an empty one, reports an error of the background thread.
            self._db.write_batch().write()
            self._wait_for_removal(before)
            self._mark = level_check.write_mark(self.path, self._mark)
        except (leveldb.Error, OSError) as error:
            raise self._write_error("flush", error) from error
        except StorageFailed as error:
            self._failure = self._failure or error
            raise

    def _wait_for_removal(self, logs: list[int]) -> None:
        deadline = time.monotonic() + _LOG_REMOVAL_S
        while not set(logs).isdisjoint(level_check.log_numbers(self.path)):
            if time.monotonic() > deadline:
                raise StorageFailed(f"LevelDB in {self.path} did not flush: its log {logs} is still there")
            time.sleep(0.001)

    def compact(self, start: bytes, stop: bytes) -> None:
        self._check()
        try:
            self._db.compact_range(start=start, stop=stop)
        except leveldb.Error as error:
            raise self._write_error("compact", error) from error

    def approximate_bytes(self) -> int:
        size = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # a compaction has removed it
                    size += entry.stat().st_size if entry.name.endswith(".ldb") else 0
        return size

    def close(self) -> None:
        with self._snapshots_lock:
            self._closed = True
            for snapshot in self._snapshots:
                snapshot.close()
        self._db.close()
        if self._failure is None:
            # Also sync the changes of compactions since the last flush. If this fails, the previous mark is still
            # valid.
            with contextlib.suppress(OSError, StorageFailed):
                level_check.write_mark(self.path, self._mark)
        self._lock.close()

    # errors

    def _check(self) -> None:
        if self._failure is not None:
            why = self._failure.message
            message = f"the stores in {self.path} do not take anything any more: {why}"
            raise StorageFailed(message, **self._failure.details)

    def _failed(self, operation: str, error: Exception) -> StorageFailed:
        text = _text(error)
        code = next((errno.errorcode[number] for number in FULL if os.strerror(number) in text), "EIO")
        message = f"cannot {operation} {self.path}: {text}"
        return StorageFailed(message, operation=operation, file=str(self.path), errno=code)

    def _corrupt(self, error: Exception) -> level_check.StoresDamaged:
        found = level_check.find_damaged_table(self.path)
        text = f"the stores in {self.path} are damaged: {_text(error)}"
        return found or level_check.StoresDamaged(text, file=str(self.path))

    def _read_error(self, error: leveldb.Error) -> SandqError:
        if isinstance(error, leveldb.CorruptionError):
            return self._corrupt(error)
        # A damaged table footer sends LevelDB beyond the end of the file: "Invalid argument".
        return level_check.find_damaged_table(self.path) or self._failed("read", error)

    def _write_error(self, operation: str, error: Exception) -> SandqError:
        failure: SandqError
        damaged = isinstance(error, leveldb.CorruptionError)
        failure = self._corrupt(error) if damaged else self._failed(operation, error)
        self._failure = self._failure or failure
        return failure


class LevelSnapshot:
    """`StoresSnapshot` of `LevelStores`. Without `close`, garbage collection releases it."""

    def __init__(self, db: leveldb.DB, read_error: Callable[[leveldb.Error], SandqError]) -> None:
        self._db = db
        self._read_error = read_error
        self._lock = threading.Lock()
        self._snapshot = db.snapshot()

    def scan(
        self, start: bytes, stop: bytes, *, limit: int | None = None, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        with self._lock:
            self._check()
            if start >= stop or limit == 0:
                return []
            try:
                # A snapshot is read only once from start to end, so do not fill the cache.
                with self._snapshot.raw_iterator(verify_checksums=True, fill_cache=False) as rows:
                    rows.seek(start)
                    return _collect(rows, start, stop, limit, max_bytes, False)
            except leveldb.Error as error:
                raise self._read_error(error) from error

    def approximate_bytes(self, start: bytes, stop: bytes) -> int:
        with self._lock:
            self._check()
            return int(self._db.approximate_size(start, stop))

    def close(self) -> None:
        with self._lock:
            if self._snapshot is not None:
                self._snapshot.close()
                self._snapshot = None

    def _check(self) -> None:
        if self._snapshot is None:
            raise ClosedError("the snapshot of the stores was closed")


def _collect(
    rows: leveldb.RawIterator,
    start: bytes,
    stop: bytes,
    limit: int | None,
    max_bytes: int | None,
    reverse: bool,
) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    valid, key_of, value_of, step = rows.valid, rows.key, rows.value, rows.prev if reverse else rows.next
    size = 0
    while valid():
        key = key_of()
        if key < start if reverse else key >= stop:
            break  # before copying its value, which may be large
        value = value_of()
        found.append((key, value))
        size += len(value)
        if len(found) == limit or (max_bytes is not None and size >= max_bytes):
            break
        step()
    return found


def _text(error: Exception) -> str:
    """Return the text of an error. plyvel's messages are the repr of a bytes object."""
    detail = error.args[0] if error.args else error
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
