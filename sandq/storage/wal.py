"""The write-ahead log of a node, for all its groups. Grammar: wal_format.py. Recovery: wal_recovery.py.

One thread owns a `Wal`; `prepare`, `pinned_by` and the counts of bytes may be asked from others. Invariants:

- a pass is one write and one sync; `commit` returns after the sync, and a second pass is begun only then;
- without room for the next segment a commit raises `WalFull`, has done nothing, and may be made again;
- after any other failure the log is poisoned: nothing is written any more, every commit raises `StorageFailed`. A
  failed sync is never retried;
- a segment is removed only when the one after it, which states every group again, was synced.
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
    encode_parts,
    encode_pass,
    segment_name,
)
from sandq.storage.wal_groups import NO_VOTE, RecoveredGroup, Tracker
from sandq.storage.wal_recovery import Recovered, recover

__all__ = ["Kind", "Record", "RecoveredGroup", "Wal", "WalFull"]

SEGMENT_BYTES = 64 << 20
_SEAL: Record = (Kind.SEAL, 0, 0, 0, b"")


class WalFull(StorageFailed):
    """There is no room for the next segment. Nothing was done: the same may be tried again."""


class Wal:
    """Make one with `Wal.open`."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, found: Recovered, on_sync: Callable[[float], None]
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sizes = found.sizes
        self._groups = found.trackers
        self._unclaimed = set(found.trackers)
        """Recovered groups of which no `release` has been told yet."""
        self._file = found.file
        self._number = max(found.sizes, default=0)
        self._end = found.end
        # One pass may have been in flight of which no byte is left: its number is not used again either.
        self._pass = found.last_pass + 1
        self._failure: str | None = None
        self._spare: tuple[int, int, File] | None = None
        self._spare_lock = threading.Lock()
        self.sealed = found.sealed
        """Whether the log that was opened had been stopped cleanly."""
        self.cut_bytes = found.cut_bytes
        """How many bytes of a torn pass were cut when it was opened."""
        self.mark = 0
        """Bytes written since it was opened; see `bytes_since`."""
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
        """Recover the log in `directory` (made when missing) and go on behind it.

        Groups for which `known_groups` is false are dropped. `on_sync` is told how long each sync of a pass took.
        Raises `Corruption` naming segment and byte offset; with `create=False` (a directory that has been in use) also
        when there is no log, or none that was ever begun.
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
            # A crash came between the end of a group here and the word of it in the log. Should a replica of it come
            # here again, its pointer would bring this one's entries back.
            wal._void(found.strays)
        return wal, found.groups

    # writing

    def commit(self, records: Sequence[Record]) -> None:
        """Write one pass; the records are durable when this returns.

        The records of a torn pass may survive as a prefix of it, so a hard state goes before the entries of
        its term. ValueError (and a poisoned log) when a record does not fit what was written before: a
        caller's bug.
        """
        self._check()
        if not records:
            return
        with self._poisoning():
            groups = self._groups
            births = [group for group in dict.fromkeys(record[1] for record in records) if group not in groups]
            if births:
                records = [*self._births(births), *records]
            need = sum([len(record[4]) for record in records]) + RECORD_BYTES_AT_MOST * len(records)
            if self._end + need > self._sizes[self._number]:
                # A group born in this pass has no place in the opening of its segment: nothing is written of
                # it yet.
                self._rotate(need)
            for group in births:
                groups[group] = Tracker()
            number = self._number
            for kind, group, index, term, payload in records:
                groups[group].note(number, kind, index, term, payload)
            self._write(records)

    def seal(self) -> None:
        """A clean stop: write a SEAL, sync it, close the files. Nothing can be written afterwards."""
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
        """Create the next segment ahead, so that the commit that needs it does not wait for 64 MB of zeros.

        Any thread may call it, at any time; False when there was nothing to do. A failure poisons nothing:
        the commit that needs the segment will meet it.
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
        """Remove the oldest segments that no group needs; bytes freed.

        `needed`: group -> lowest index still needed. A group that is not in it needs nothing, except that a
        recovered one keeps all it has until it was in it once (or is forgotten): at a start, groups are opened
        one by one. What a group's BASE says to be kept is kept even when `needed` is higher.
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
        """group -> how many full segments older than the current one its tail keeps from being removed
        (above 0).

        The caller makes such a tail short again by committing it as COPY records.
        """
        pinned: dict[int, int] = {}
        for group, tracker in list(self._groups.items()):
            segment = tracker.oldest_segment(tracker.base)
            if segment is not None and segment < self._number:
                pinned[group] = self._number - segment
        return pinned

    def forget(self, group: int) -> None:
        """This group is gone, durably: what the log holds of it is void, and later segments do not state
        it."""
        self._check()
        if group in self._groups:
            self._void([group])

    def _void(self, groups: Sequence[int]) -> None:
        for group in groups:
            self._groups.setdefault(group, Tracker())
        self.commit(self._births(groups))
        for group in groups:
            del self._groups[group]

    @property
    def bytes_on_disk(self) -> int:
        """Size of all segments."""
        return sum(list(self._sizes.values()))

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self._sizes)

    def bytes_since(self, mark: int) -> int:
        """Bytes written since `mark` was what `self.mark` is now."""
        return self.mark - mark

    # inside

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"the WAL does not take anything any more: {self._failure}")

    @contextlib.contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Whatever goes wrong inside is the end of this log."""
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
    def _births(groups: Sequence[int]) -> list[Record]:
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
        """Go on in a new segment, with room for `need` bytes behind its opening pass."""
        number = self._number + 1
        records = [record for group, tracker in self._groups.items() for record in tracker.opening(group)]
        records = records or [_SEAL]
        opening = encode_pass(number, SEGMENT_HEADER_BYTES, self._pass + 1, records)
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
            # Under the lock: behind it `prepare` means the segment after this one.
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
