"""Read the log after a stop: recover its records, find where writing continues, and distinguish torn from rotten data.

A batch (the records of one commit batch) is written only after the previous batch was synced. So if the bytes at
offset X are not a valid next record, there are three cases:

- An intact record after X belongs to a batch that *began* after X. It proves that the bytes at X had been synced. They
  are **rotten**: refuse to start (`Corruption` with segment and offset). A SEAL is such a record, too.
- A later segment was opened. Its header says where the records of the earlier segment end. If X is not that offset, the
  bytes are rotten as well.
- Otherwise X is in the last batch, whose sync need not have returned: it is **torn**. The records before X are kept,
  and all bytes from X on are filled with zeros.

If the header or the opening batch of the last segment is incomplete, the segment was being created or preallocated. It
contains at most the opening batch, and the older segments still exist, so it is removed. If it has records of a later
batch, or if older segments existed but are gone, it is rotten instead.

The recovered records will be acknowledged as durable. But a killed process leaves bytes that are written and not
synced, and after a failed fsync the kernel treats lost pages as clean. Therefore recovery writes the last kept batch
again, in place, and syncs it. (Earlier batches were synced before this batch was written.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from sandq.model.errors import Corruption
from sandq.storage.files import File, Files
from sandq.storage.wal_format import (
    SEGMENT_HEADER_BYTES,
    Kind,
    Reader,
    Record,
    SegmentHeader,
    decode_segment_header,
    scan,
    segment_name,
    segment_number,
)
from sandq.storage.wal_groups import RecoveredGroup, Replay, Tracker


@dataclass(kw_only=True)
class Recovered:
    """A recovered log. `file`: the last segment, None if there is none. `end`: the offset where writing continues."""

    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of each segment by its number, ascending."""
    file: File | None = None
    end: int = 0
    last_batch: int = 0
    """The highest batch number found, including torn batches."""
    sealed: bool = False
    cut_bytes: int = 0
    raised: list[Record] = field(default_factory=list)
    """Hard states whose term `Replay.finish` had to raise. Write them before any other record."""
    trackers: dict[int, Tracker] = field(default_factory=dict)
    groups: dict[int, RecoveredGroup] = field(default_factory=dict)
    strays: list[int] = field(default_factory=list)
    """Groups that were removed, but whose removal is not in the log."""


def recover(files: Files, directory: str, known_groups: Callable[[int], bool]) -> Recovered:
    """Read the whole log, repair its torn end, and return its content. Interrupting and repeating this is safe.

    `known_groups`: returns whether a group exists on this node. Raise Corruption if the log is rotten."""
    return _Recovery(files, directory, known_groups).run()


class _Recovery:
    """One run of `recover`."""

    def __init__(self, files: Files, directory: str, known_groups: Callable[[int], bool]) -> None:
        self._files = files
        self._directory = directory
        self._known_groups = known_groups
        self._replays: dict[int, Replay | None] = {}
        self._strays: set[int] = set()
        self._found = Recovered()
        self._before: Reader | None = None

    def run(self) -> Recovered:
        numbers = self._numbers()
        self._drop_unfinished(numbers)
        for number in numbers:
            self._read_segment(number, number == numbers[-1])
        found = self._found
        for group, replay in sorted(self._replays.items()):
            if replay is not None:
                term = replay.tracker.term
                found.groups[group] = replay.finish(group)
                found.trackers[group] = replay.tracker
                if replay.tracker.term != term:
                    found.raised.append(replay.tracker.opening(group)[0])
        found.strays = sorted(self._strays)
        return found

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def _header(self, number: int, data: bytes) -> SegmentHeader | str:
        """Return the header of a segment, or the reason why it is invalid."""
        header = decode_segment_header(data, number)
        if isinstance(header, SegmentHeader) and header.size != len(data):
            # A file gets its full size before its header is written, so a different size means damage.
            raise self._corrupt(number, len(data), f"the file had {header.size} bytes")
        return header

    def _numbers(self) -> list[int]:
        names = self._files.list(self._directory)
        numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
        for before, after in pairwise(numbers):
            if after != before + 1:
                missing = self._path(before + 1)
                raise Corruption(f"WAL segment {missing} is missing", file=missing, offset=0)
        return numbers

    def _drop_unfinished(self, numbers: list[int]) -> None:
        """Remove the last segment, and its number, if its creation was not finished."""
        if not numbers:
            return
        number = numbers[-1]
        data = self._files.read(self._path(number))
        header = self._header(number, data)
        if isinstance(header, SegmentHeader):
            reader = Reader(data[: header.opening_end], header)
            for _ in reader:
                pass
            if reader.end == header.opening_end:
                return
            at, why = reader.end, f"{reader.why or 'zeros'} in the opening batch"
        else:
            at, why = 0, header
        for sight in scan(data, number, at):
            self._found.last_batch = max(self._found.last_batch, sight.batch_number)
            if sight.batch_start != SEGMENT_HEADER_BYTES:
                raise self._corrupt(number, at, why)
        if len(numbers) == 1 and number != 1:
            raise self._corrupt(number, at, why)
        if isinstance(header, SegmentHeader) and len(numbers) > 1:
            self._check_whole(numbers[-2], header.previous_end)
        self._files.remove(self._path(number))
        numbers.pop()

    def _check_whole(self, number: int, end: int) -> None:
        """Check that the records of a segment end at `end`, which the header of the next segment states."""
        data = self._files.read(self._path(number))
        header = self._header(number, data)
        if isinstance(header, str):
            raise self._corrupt(number, 0, header)
        reader = Reader(data, header)
        for _ in reader:
            pass
        self._check_end(reader, end)

    def _check_end(self, reader: Reader, end: int) -> None:
        """Raise Corruption unless the records end at `end`, which the next segment's header states."""
        if reader.end != end:
            why = reader.why or "zeros"
            raise self._corrupt(reader.segment, min(reader.end, end), f"{why}, but its records end at {end}")

    def _corrupt(self, number: int, offset: int, why: str) -> Corruption:
        path = self._path(number)
        return Corruption(f"WAL segment {path} is damaged at byte {offset}: {why}", file=path, offset=offset)

    def _read_segment(self, number: int, is_last: bool) -> None:
        """Replay one segment."""
        data = self._files.read(self._path(number))
        header = self._header(number, data)
        if isinstance(header, str):
            raise self._corrupt(number, 0, header)
        before, found = self._before, self._found
        if before is not None:
            self._check_end(before, header.previous_end)
            if header.batch_number <= before.last_batch:
                why = f"opened by batch {header.batch_number} behind batch {before.last_batch}"
                raise self._corrupt(number, 40, why)
        reader = Reader(data, header)
        self._replay(reader)
        if reader.end < header.opening_end:
            raise self._corrupt(number, reader.end, reader.why or "zeros in the opening batch")
        found.last_batch = max(found.last_batch, header.batch_number, reader.last_batch)
        found.sizes[number] = len(data)
        if is_last:
            found.file, found.end = self._files.open(self._path(number)), reader.end
            self._repair_end(reader, found.file, header)
        reader.data = b""
        self._before = reader

    def _replay(self, reader: Reader) -> None:
        """Replay the records of one segment, and note groups without a known store (`strays`) that have records."""
        replays, segment = self._replays, reader.segment
        kind = 0
        for kind, group, index, term, payload in reader:
            if kind == Kind.SEAL:
                continue
            if not 1 <= kind < Kind.SEAL:
                raise self._corrupt(segment, reader.end, f"kind {kind} in the record before is not known here")
            if group not in replays:
                replays[group] = Replay() if self._known_groups(group) else None
            replay = replays[group]
            if replay is not None:
                replay.note(segment, kind, index, term, payload)
            elif kind == Kind.TRUNCATE and index == 0:
                self._strays.discard(group)
            elif kind != Kind.HARD_STATE or term:
                self._strays.add(group)
        self._found.sealed = kind == Kind.SEAL

    def _repair_end(self, reader: Reader, file: File, header: SegmentHeader) -> None:
        """Repair the end of the last segment: fill torn bytes with zeros, and write and sync the last kept batch again.

        Raise Corruption if the end is rotten, not torn."""
        data, found = reader.data, self._found
        for sight in scan(data, reader.segment, reader.end):
            if sight.batch_start > reader.end:
                raise self._corrupt(reader.segment, reader.end, reader.why or "zeros, but later records follow")
            found.last_batch = max(found.last_batch, sight.batch_number)
        rewrite_from = 0 if reader.end == header.opening_end else reader.batch_start
        file.write_at(rewrite_from, data[rewrite_from : reader.end])
        garbage = len(data[reader.end :].rstrip(b"\0"))
        if garbage:
            file.write_at(reader.end, bytes(garbage))
            found.sealed = False
        found.cut_bytes = garbage
        file.sync()
