"""The write-ahead log of a node, for all its groups. Format: wal_format.py. Recovery: wal_recovery.py.

One thread owns a `Wal`. Only `prepare`, `pinned_by` and the byte counts may be used from other threads. Invariants:

- A commit batch (`batch` in names) is one write and one sync. `commit` returns after the sync, and only then the
  next batch may begin. Recovery relies on this.
- If there is no disk space for the next segment, a commit raises `WalFull`, has no effect, and may be repeated.
- After any other failure the log is poisoned: nothing more is written, and every commit raises `StorageFailed`. A
  failed sync is never retried.
- A segment is removed only after the next segment, which repeats the state of every group, was synced.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from sandq.model.errors import Corruption, SandqError, StorageFailed
from sandq.storage.files import File, Files, is_full
from sandq.storage.wal_format import (
    RECORD_BYTES_AT_MOST,
    SEGMENT_HEADER_BYTES,
    Kind,
    Record,
    SegmentHeader,
    encode_batch,
    encode_parts,
    segment_name,
)
from sandq.storage.wal_groups import NO_VOTE, RecoveredGroup, Tracker
from sandq.storage.wal_recovery import Recovered, recover

__all__ = ["Kind", "Record", "RecoveredGroup", "Wal", "WalFull"]

SEGMENT_BYTES = 64 << 20
_SEAL: Record = (Kind.SEAL, 0, 0, 0, b"")


class WalFull(StorageFailed):
    """There is no disk space for the next segment. Nothing was written, so the caller may retry."""


class Wal:
    """The open log. Create it with `Wal.open`."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, found: Recovered, on_sync: Callable[[float], None]
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sizes = found.sizes
        self._groups = found.trackers
        self._unclaimed = set(found.trackers)
        """Recovered groups that no call of `release` has mentioned yet."""
        self._file = found.file
        self._number = max(found.sizes, default=0)
        self._end = found.end
        # The commit batch in flight at the stop may have written no byte. Skip its number, which must not be reused
        # either.
        self._pass = found.last_batch + 1
        self._failure: str | None = None
        self._spare: tuple[int, int, File] | None = None
        self._spare_lock = threading.Lock()
        self.sealed = found.sealed
        """True if the log had been closed cleanly before it was opened."""
        self.cut_bytes = found.cut_bytes
        """Bytes of a torn commit batch that were removed when the log was opened."""
        self.mark = 0
        """Bytes written since the log was opened; see `bytes_since`."""
        self._on_sync = on_sync

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str = "wal",
        *,
        segment_bytes: int = SEGMENT_BYTES,
        known_groups: Callable[[int], bool],
        create: bool = True,
        on_sync: Callable[[float], None] = lambda seconds: None,
    ) -> tuple[Wal, dict[int, RecoveredGroup]]:
        """Recover the log in `directory`, which is created if it is missing. Return (open log, groups by number).

        Groups for which `known_groups` returns false are dropped. `on_sync` is called with the seconds of each sync.
        Raise `Corruption`, with segment and byte offset, if the log is damaged. With `create=False` (a directory that
        has been in use), also raise `Corruption` if there is no log, or no whole segment.
        """
        if create:
            files.make_dir(directory)
        elif not files.exists(directory):
            raise Corruption(f"the WAL {directory} is missing", file=directory, offset=0)
        found = recover(files, directory, known_groups)
        if found.file is None and not create:
            raise Corruption(f"the WAL {directory} holds no whole segment", file=directory, offset=0)
        wal = cls(files, directory, segment_bytes, found, on_sync)
        if wal._file is None:
            with wal._poisoning():
                wal._rotate(0)
        if found.raised:
            wal.commit(found.raised)
        if found.strays:
            # The node crashed after a group was removed from it, and before the log recorded the removal. If the node
            # got a replica of the group again, its pointer would make these old entries valid again.
            wal._void(found.strays)
        return wal, found.groups

    # writing

    def commit(self, records: Sequence[Record]) -> None:
        """Write one commit batch. The records are durable when this returns.

        A prefix of a torn batch may survive, so a hard state must come before the entries of its term. Raise
        ValueError, and poison the log, if a record does not fit the earlier ones: this is a bug of the caller.
        """
        self._check()
        if not records:
            return
        with self._poisoning():
            groups = self._groups
            new_groups = [group for group in dict.fromkeys(record[1] for record in records) if group not in groups]
            if new_groups:
                records = [*self._initial_records(new_groups), *records]
            need = sum([len(record[4]) for record in records]) + RECORD_BYTES_AT_MOST * len(records)
            if self._end + need > self._sizes[self._number]:
                # Rotate before the new groups get a tracker: they have no records yet, so the opening batch of the new
                # segment must not contain them.
                self._rotate(need)
            for group in new_groups:
                groups[group] = Tracker()
            number = self._number
            for kind, group, index, term, payload in records:
                groups[group].note(number, kind, index, term, payload)
            self._write(records)

    def seal(self) -> None:
        """Stop cleanly: write and sync a SEAL, then close the files. Later commits fail."""
        self._check()
        with self._poisoning():
            if self._end + RECORD_BYTES_AT_MOST > self._sizes[self._number]:
                self._rotate(RECORD_BYTES_AT_MOST)
            self._write([_SEAL])
        self._failure = "it was sealed"
        self.close()

    def close(self) -> None:
        """Close the files without a seal."""
        self._failure = self._failure or "it was closed"
        if self._file is not None:
            self._file.close()
            self._file = None
        with self._spare_lock:
            if self._spare is not None:
                self._spare[2].close()
                self._spare = None

    def prepare(self) -> bool:
        """Preallocate the next segment, so that the commit that needs it does not wait for 64 MB of zeros.

        Return False if there is nothing to do. Any thread may call `prepare` at any time. A failure does not poison the
        log: the commit that needs the segment retries.
        """
        with self._spare_lock:
            number = self._number + 1
            if self._failure is not None or self._spare is not None:
                return False
            file = self._files.open(self._path(number), create_bytes=self._segment_bytes)
            self._spare = number, self._segment_bytes, file
            return True

    # keeping the log short

    def release(self, needed: Mapping[int, int]) -> int:
        """Remove the oldest segments that no group needs. Return the number of bytes freed.

        `needed`: lowest index still needed, by group. A missing group needs no entries. Exception: a recovered group
        keeps all its entries until `needed` has contained it once, or `forget` is called, because groups are opened one
        by one at a start. Entries from a group's BASE on are kept even if `needed` is higher.
        """
        self._check()
        freed = 0
        with self._poisoning():
            oldest = self._oldest_needed(needed)
            for number in [number for number in self._sizes if number < oldest]:
                self._files.remove(self._path(number))
                freed += self._sizes.pop(number)
        return freed

    def _oldest_needed(self, needed: Mapping[int, int]) -> int:
        oldest = self._number
        self._unclaimed.difference_update(needed)
        unclaimed = {group: self._groups[group].base for group in self._unclaimed if group in self._groups}
        for group, index in [*needed.items(), *unclaimed.items()]:
            tracker = self._groups.get(group)
            if tracker is not None:
                segment = tracker.oldest_segment(min(index, tracker.base))
                oldest = oldest if segment is None else min(oldest, segment)
        return oldest

    def pinned_by(self) -> dict[int, int]:
        """Return, by group, the number of segments from the segment with its oldest entry to the current segment. Omit
        groups with 0.

        These segments cannot be removed. The caller frees them by committing the group's entries as COPY records.
        """
        pinned: dict[int, int] = {}
        for group, tracker in list(self._groups.items()):
            segment = tracker.oldest_segment(tracker.base)
            if segment is not None and segment < self._number:
                pinned[group] = self._number - segment
        return pinned

    def forget(self, group: int) -> None:
        """Remove a group durably: its records become void, and later segments do not contain it."""
        self._check()
        if group in self._groups:
            self._void([group])

    def _void(self, groups: Sequence[int]) -> None:
        for group in groups:
            self._groups.setdefault(group, Tracker())
        self.commit(self._initial_records(groups))
        for group in groups:
            del self._groups[group]

    @property
    def bytes_on_disk(self) -> int:
        """Size of all segments, in bytes."""
        return sum(list(self._sizes.values()))

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._sizes)

    def bytes_since(self, mark: int) -> int:
        """Return the bytes written since `self.mark` had the value `mark`."""
        return self.mark - mark

    # inside

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"the WAL does not take anything any more: {self._failure}")

    @contextlib.contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Poison the log if the block raises, unless it raises `WalFull`."""
        try:
            yield
        except WalFull:
            raise
        except OSError as error:
            self._failure = self._failure or str(error)
            raise StorageFailed(f"the WAL failed: {error}") from error
        except SandqError as error:
            self._failure = self._failure or error.message
            raise
        except BaseException as error:
            self._failure = self._failure or repr(error)
            raise

    @staticmethod
    def _initial_records(groups: Sequence[int]) -> list[Record]:
        records: list[Record] = []
        for group in groups:
            records.append((Kind.TRUNCATE, group, 0, 0, b""))
            records.append((Kind.HARD_STATE, group, 0, 0, NO_VOTE))
        return records

    def _write(self, records: Sequence[Record]) -> None:
        assert self._file is not None
        self._pass += 1
        end = self._end
        for part in encode_parts(self._number, end, self._pass, records):
            self._file.write_at(end, part)
            end += len(part)
        self._sync(self._file)
        self.mark += end - self._end
        self._end = end

    def _sync(self, file: File) -> None:
        began = time.perf_counter()
        file.sync()
        self._on_sync(time.perf_counter() - began)

    def _rotate(self, need: int) -> None:
        """Continue in a new segment that has space for `need` bytes after its opening batch.

        The opening batch repeats the state of every group, so that older segments can be removed."""
        number = self._number + 1
        records = [record for group, tracker in self._groups.items() for record in tracker.opening(group)]
        records = records or [_SEAL]
        opening = encode_batch(number, SEGMENT_HEADER_BYTES, self._pass + 1, records)
        end = SEGMENT_HEADER_BYTES + len(opening)
        size = max(self._segment_bytes, end + need + 7 & ~7)
        file = self._new_segment(number, size)
        self._pass += 1
        size = file.size()
        header = SegmentHeader(number, self._end, end, self._pass, size)
        file.write_at(0, header.encode() + opening)
        self._sync(file)
        if self._file is not None:
            self._file.close()
        self._file, self._end = file, end
        self._sizes[number] = size
        self.mark += end

    def _new_segment(self, number: int, size: int) -> File:
        with self._spare_lock:
            # Change the number under the lock: once the lock is released, `prepare` must create the segment after this
            # one.
            spare, self._spare = self._spare, None
            if spare is not None:
                if spare[1] >= size:
                    self._number = number
                    return spare[2]
                spare[2].close()
            if self._files.exists(self._path(number)):
                self._files.remove(self._path(number))
            try:
                file = self._files.open(self._path(number), create_bytes=size)
            except StorageFailed as error:
                raise WalFull(error.message, **error.details) if is_full(error) else error from None
            self._number = number
            return file
