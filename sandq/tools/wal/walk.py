"""Read the records of a log with their offsets, and the problems between them, with the parsers of the storage.

`read_segment` yields `Found` for each record and `Problem` for all other bytes. After a problem, it continues at the
next intact record header. The kinds of problems are:

- `torn`: the bytes may belong to the last commit batch, whose sync may not have returned. The node cuts them at its
  start. In the log of a running node, they are the bytes that the node is writing now.
- `damage`: the bytes had been synced; the records after them prove it. The node refuses to start.

docs/storage-format.md, "Reading it after a stop", has the rule that distinguishes the two kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from sandq.model.errors import InvalidRequest
from sandq.storage.wal_format import (
    SEGMENT_HEADER_BYTES,
    Reader,
    Record,
    SegmentHeader,
    decode_segment_header,
    scan,
    segment_name,
    segment_number,
)


class Found(NamedTuple):
    """An intact record. Offset and size are in bytes, within the file of the segment."""

    segment: int
    offset: int
    size: int
    batch_number: int
    record: Record


class Problem(NamedTuple):
    """The bytes from `offset` to `end`, which are no record."""

    segment: int
    offset: int
    end: int
    kind: Literal["torn", "damage"]
    why: str


class Note(NamedTuple):
    """A remark about a segment: neither a record nor a problem."""

    segment: int
    offset: int
    text: str


Item = Found | Problem | Note


@dataclass(frozen=True)
class Segment:
    """A file of a log. Its neighbours are expected in the same directory."""

    path: Path
    number: int


def segments_of(paths: Sequence[Path]) -> list[Segment]:
    """Return the segments for a list of data directories, WAL directories and files.

    Segments of one directory are sorted by number. Raises InvalidRequest if a path has no segments.
    """
    found: list[Segment] = []
    for path in paths:
        if path.is_dir():
            directory = path / "wal" if (path / "wal").is_dir() else path
            numbers = sorted(n for name in _names(directory) if (n := segment_number(name)) is not None)
            if not numbers:
                raise InvalidRequest(f"{path}: it has no WAL (segments are files like wal/{segment_name(1)})")
            found += [Segment(directory / segment_name(number), number) for number in numbers]
        elif path.is_file():
            number = segment_number(path.name)
            if number is None:
                raise InvalidRequest(f"{path}: its name is not that of a WAL segment, which is like {segment_name(1)}")
            found.append(Segment(path, number))
        else:
            raise InvalidRequest(f"{path}: no such file or directory")
    return found


def _names(directory: Path) -> Iterable[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise InvalidRequest(f"{directory}: cannot be read: {error.strerror}") from None


def missing_between(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that are missing between segments of the same directory."""
    missing = []
    for before, after in pairwise(segments):
        if before.path.parent == after.path.parent:
            missing += [
                Segment(before.path.with_name(segment_name(number)), number)
                for number in range(before.number + 1, after.number)
            ]
    return missing


def read_segment(segment: Segment) -> Iterator[Item]:
    """Yield all records and problems of a segment. If the node has released the file meanwhile, yield a note."""
    try:
        data = segment.path.read_bytes()
    except FileNotFoundError:
        yield Note(segment.number, 0, "the node has released it meanwhile")
        return
    except OSError as error:
        yield Problem(segment.number, 0, 0, "damage", f"it cannot be read: {error.strerror}")
        return
    header = decode_segment_header(data, segment.number)
    following = _following(segment)
    if isinstance(header, str):
        yield from _without_header(segment, data, header, following is None)
        return
    if header.size != len(data):
        yield Problem(segment.number, len(data), len(data), "damage", f"the file had {header.size} bytes")
    yield from _records(segment, data, header, following)


def _following(segment: Segment) -> SegmentHeader | None:
    """Return the header of the next segment. None if the node has not begun the next segment."""
    path = segment.path.with_name(segment_name(segment.number + 1))
    try:
        with path.open("rb") as file:
            header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES), segment.number + 1)
    except OSError:
        return None
    return header if isinstance(header, SegmentHeader) else None


def _without_header(segment: Segment, data: bytes, why: str, is_last: bool) -> Iterator[Item]:
    if not any(data):
        yield Note(segment.number, 0, "it is prepared: nothing has been written to it yet")
        return
    # A record of a later batch proves that the first batch had been synced, and the header with it.
    has_later_batch = any(sight.batch_start != SEGMENT_HEADER_BYTES for sight in scan(data, segment.number, 0))
    kind: Literal["torn", "damage"] = "torn" if is_last and not has_later_batch else "damage"
    yield Problem(segment.number, 0, len(data), kind, why)
    # Each record contains its batch and offset, so records can be read without the segment's header.
    yield from _after_problem(data, SegmentHeader(segment.number, 0, 0, 0, len(data)), 0, None)


def _records(segment: Segment, data: bytes, header: SegmentHeader, following: SegmentHeader | None) -> Iterator[Item]:
    """Yield the records of a segment, and the problems between or after them."""
    reader = Reader(data, header)
    yield from _read(reader)
    # The header of the next segment states where the records end, so any other end is damage.
    ends_at = following.previous_end if following is not None else None
    if ends_at is not None and ends_at == reader.end:
        return
    if ends_at is not None:
        why = f"{reader.why or 'zeros'}, but the next segment says that the records end at {ends_at}"
        if reader.end > ends_at:
            why = f"records after {ends_at}, where they end according to the next segment"
            yield Problem(segment.number, ends_at, reader.end, "damage", why)
            return
        yield from _after_problem(data, header, reader.end, Problem(segment.number, reader.end, ends_at, "damage", why))
        return
    # In the last segment, a record of a later batch proves that the bytes before it were synced (wal_recovery.py).
    later = [sight for sight in scan(data, segment.number, reader.end)]
    end = reader.end + len(data[reader.end :].rstrip(b"\0"))
    if any(sight.batch_start > reader.end for sight in later):
        why = reader.why or "zeros, but later records follow"
        yield from _after_problem(data, header, reader.end, Problem(segment.number, reader.end, end, "damage", why))
    elif end > reader.end:
        yield Problem(segment.number, reader.end, end, "torn", reader.why or "zeros within a batch")


def _after_problem(data: bytes, header: SegmentHeader, at: int, problem: Problem | None) -> Iterator[Item]:
    """Yield the problem up to the next intact record, then the following records. Repeat this to the end."""
    content = len(data.rstrip(b"\0"))
    while True:
        resumed = _resume(data, header, at)
        if resumed is None:
            if problem is not None:
                yield problem
            return
        reader, items = resumed
        begins = items[0].offset
        if problem is not None:
            yield problem._replace(end=begins)
        yield from items
        at = reader.end
        if at >= content:
            return
        why = reader.why or "zeros, but later records follow"
        problem = Problem(header.number, at, content, "damage", why)


def _resume(data: bytes, header: SegmentHeader, at: int) -> tuple[Reader, list[Found]] | None:
    """Read from the first record at or after `at`. Return None if there is none."""
    for sight in scan(data, header.number, at):
        reader = Reader(data, header)
        reader.end, reader.last_batch, reader.batch_start = sight.offset, sight.batch_number, sight.batch_start
        items = list(_read(reader))
        if items:
            return reader, items
    return None


def _read(reader: Reader) -> Iterator[Found]:
    at = reader.end
    for record in reader:
        yield Found(reader.segment, at, reader.end - at, reader.last_batch, record)
        at = reader.end
