"""A log's records with their places, and what is wrong between them. The parsers are those of the storage.

`walk_segment` gives `Found` for each record and `Problem` where something else stands, and goes on behind a problem at
the next intact record header. A problem is

- `torn`: it may lie in the last pass, whose sync need not have returned; a start of the node cuts it. In the log of a
  node that runs it is what is being written just now.
- `damage`: it had been synced, as what follows it proves; the node refuses to start on it.

The rule that tells the two apart is that of docs/storage-format.md, "Reading it after a stop".
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
    """An intact record; offset and size in bytes, in the file of the segment."""

    segment: int
    offset: int
    size: int
    pass_number: int
    record: Record


class Problem(NamedTuple):
    """What stands at `offset` instead of a record, up to `end`."""

    segment: int
    offset: int
    end: int
    kind: Literal["torn", "damage"]
    why: str


class Note(NamedTuple):
    """Something to know of a segment that is no record and no problem."""

    segment: int
    offset: int
    text: str


Item = Found | Problem | Note


@dataclass(frozen=True)
class Segment:
    """A file of a log, and the directory that its neighbours are looked for in."""

    path: Path
    number: int


def segments_of(paths: Sequence[Path]) -> list[Segment]:
    """The segments that are meant by data directories, WAL directories and files; InvalidRequest when there are none.

    Those of one directory by their number.
    """
    found: list[Segment] = []
    for path in paths:
        if path.is_dir():
            directory = path / "wal" if (path / "wal").is_dir() else path
            numbers = sorted(n for name in _names(directory) if (n := segment_number(name)) is not None)
            if not numbers:
                raise InvalidRequest(f"{path}: it holds no WAL (segments are files like wal/{segment_name(1)})")
            found += [Segment(directory / segment_name(number), number) for number in numbers]
        elif path.is_file():
            number = segment_number(path.name)
            if number is None:
                raise InvalidRequest(f"{path}: it has not the name of a WAL segment, which is like {segment_name(1)}")
            found.append(Segment(path, number))
        else:
            raise InvalidRequest(f"{path}: there is no such file or directory")
    return found


def _names(directory: Path) -> Iterable[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise InvalidRequest(f"{directory}: cannot be read: {error.strerror}") from None


def missing_between(segments: Sequence[Segment]) -> list[Segment]:
    """Segments that are not there although those around them in their directory are."""
    missing = []
    for before, after in pairwise(segments):
        if before.path.parent == after.path.parent:
            missing += [
                Segment(before.path.with_name(segment_name(number)), number)
                for number in range(before.number + 1, after.number)
            ]
    return missing


def walk_segment(segment: Segment) -> Iterator[Item]:
    """See the module's docstring. A file that is gone by now (the node released it) gives a note."""
    try:
        data = segment.path.read_bytes()
    except FileNotFoundError:
        yield Note(segment.number, 0, "it was released by the node meanwhile")
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
    """The header of the segment behind, when it was begun."""
    path = segment.path.with_name(segment_name(segment.number + 1))
    try:
        with path.open("rb") as file:
            header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES), segment.number + 1)
    except OSError:
        return None
    return header if isinstance(header, SegmentHeader) else None


def _without_header(segment: Segment, data: bytes, why: str, is_last: bool) -> Iterator[Item]:
    if not any(data):
        yield Note(segment.number, 0, "it is prepared, and nothing was written into it yet")
        return
    later = any(sight.pass_start != SEGMENT_HEADER_BYTES for sight in scan(data, segment.number, 0))
    kind: Literal["torn", "damage"] = "torn" if is_last and not later else "damage"
    yield Problem(segment.number, 0, len(data), kind, why)
    # Records say themselves where they belong, so they can be read without the header.
    yield from _onwards(data, SegmentHeader(segment.number, 0, 0, 0, len(data)), 0, None)


def _records(segment: Segment, data: bytes, header: SegmentHeader, following: SegmentHeader | None) -> Iterator[Item]:
    reader = Reader(data, header)
    yield from _read(reader)
    ends_at = following.previous_end if following is not None else None
    if ends_at is not None and ends_at == reader.end:
        return
    if ends_at is not None:
        why = f"{reader.why or 'zeros'}, but its records end at {ends_at}, as the next segment says"
        if reader.end > ends_at:
            why = f"records behind {ends_at}, where they end as the next segment says"
            yield Problem(segment.number, ends_at, reader.end, "damage", why)
            return
        yield from _onwards(data, header, reader.end, Problem(segment.number, reader.end, ends_at, "damage", why))
        return
    later = [sight for sight in scan(data, segment.number, reader.end)]
    end = reader.end + len(data[reader.end :].rstrip(b"\0"))
    if any(sight.pass_start > reader.end for sight in later):
        why = reader.why or "zeros, but later records follow"
        yield from _onwards(data, header, reader.end, Problem(segment.number, reader.end, end, "damage", why))
    elif end > reader.end:
        yield Problem(segment.number, reader.end, end, "torn", reader.why or "zeros within a pass")


def _onwards(data: bytes, header: SegmentHeader, at: int, problem: Problem | None) -> Iterator[Item]:
    """A problem up to the next intact record header, then records, and so on to the end."""
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
    """From the first place at or behind `at` where at least one whole record stands."""
    for sight in scan(data, header.number, at):
        reader = Reader(data, header)
        reader.end, reader.last_pass, reader.pass_start = sight.offset, sight.pass_number, sight.pass_start
        items = list(_read(reader))
        if items:
            return reader, items
    return None


def _read(reader: Reader) -> Iterator[Found]:
    at = reader.end
    for record in reader:
        yield Found(reader.segment, at, reader.end - at, reader.last_pass, record)
        at = reader.end
