"""Read stored data and check that it is unchanged, because disks can silently lose or change data.

The check writes nothing, and can run while the node is working. In the WAL, it checks all segments that are complete:
the header of the next segment says where their records end. In LevelDB, it checks all tables that were not written for
a while, because a table that is being written has no footer yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sandq.model.errors import Corruption
from sandq.storage import level_check
from sandq.storage.files import Files
from sandq.storage.wal_format import (
    SEGMENT_HEADER_BYTES,
    Reader,
    SegmentHeader,
    decode_segment_header,
    segment_name,
    segment_number,
)

STEP_BYTES: Final = 1 << 20
"""Bytes read from the WAL between two pauses. A table is always read as a whole."""
QUIET_S: Final = 600.0
"""Only tables whose last write is at least this old, in s, are checked. A younger table may be incomplete."""


def scrub_wal(files: Files, directory: str = "wal") -> Iterator[int]:
    """Check the WAL. Yield the number of bytes read in each step.

    Raise Corruption, with file and byte, if the WAL is damaged. Raise StorageFailed if it cannot be read."""
    numbers = sorted(number for name in files.list(directory) if (number := segment_number(name)) is not None)
    for number in numbers[:-1]:
        name = f"{directory}/{segment_name(number)}"
        try:
            following = _header(files, f"{directory}/{segment_name(number + 1)}", number + 1)
            if following is None:
                return  # the next segment is preallocated and empty, so this segment is still being written
            data = files.read(name)
        except FileNotFoundError:
            continue  # the segment was released in the meantime
        header = _decoded(data, name, number)
        reader, reported = Reader(data, header), 0
        for _ in reader:
            if reader.end - reported >= STEP_BYTES:
                yield reader.end - reported
                reported = reader.end
        if reader.end != following.previous_end:
            at = min(reader.end, following.previous_end)
            why = f"{reader.why or 'zeros'}, but its records end at {following.previous_end}"
            raise Corruption(f"WAL segment {name} is damaged at byte {at}: {why}", file=name, offset=at)
        yield reader.end - reported


def _header(files: Files, name: str, number: int) -> SegmentHeader | None:
    """Return the header of a segment; None if nothing is written to the segment yet."""
    file = files.open(name)
    try:
        data = file.read_at(0, SEGMENT_HEADER_BYTES)
    finally:
        file.close()
    return _decoded(data, name, number) if any(data) else None


def _decoded(data: bytes, name: str, number: int) -> SegmentHeader:
    header = decode_segment_header(data, number)
    if not isinstance(header, SegmentHeader):
        raise Corruption(f"WAL segment {name} is damaged at byte 0: {header}", file=name, offset=0)
    return header


def scrub_tables(directory: Path, now_s: Callable[[], float] = time.time) -> Iterator[int]:
    """Check LevelDB's tables. Yield the size in bytes of each table read.

    `now_s`: the clock of the file times. Raise Corruption, with file and byte, if a table is damaged."""
    for name in sorted(os.listdir(directory)):
        if not level_check.is_table(name):
            continue
        path = directory / name
        try:
            if now_s() - path.stat().st_mtime < QUIET_S:
                continue
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # a compaction removed it
        problem = level_check.check_table(data)
        if problem is not None and path.exists():
            raise Corruption(f"{path} is damaged at byte {problem[0]}: {problem[1]}", file=str(path), offset=problem[0])
        yield len(data)
