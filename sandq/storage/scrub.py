"""Read what is stored and look whether it is still what was written: disks forget in silence.

Nothing is written, and a node may be at work on it. Of the WAL the segments are read that no pass goes into any more;
the next one says where their records end. Of LevelDB every table that has been left alone for a while: one that is
being written has no end yet.
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
"""So much is read between two pauses, a table at least."""
QUIET_S: Final = 600.0
"""A table that was written to so lately may not be whole yet."""


def scrub_wal(files: Files, directory: str = "wal") -> Iterator[int]:
    """Yield the bytes that were read, step by step. Raises Corruption, naming file and byte; StorageFailed."""
    numbers = sorted(number for name in files.list(directory) if (number := segment_number(name)) is not None)
    for number in numbers[:-1]:
        name = f"{directory}/{segment_name(number)}"
        try:
            following = _header(files, f"{directory}/{segment_name(number + 1)}", number + 1)
            if following is None:
                return  # it was made ahead, and nothing is in it: this one is still written
            data = files.read(name)
        except FileNotFoundError:
            continue  # it was released meanwhile
        header = _decoded(data, name, number)
        reader, told = Reader(data, header), 0
        for _ in reader:
            if reader.end - told >= STEP_BYTES:
                yield reader.end - told
                told = reader.end
        if reader.end != following.previous_end:
            at = min(reader.end, following.previous_end)
            why = f"{reader.why or 'zeros'}, but its records end at {following.previous_end}"
            raise Corruption(f"WAL segment {name} is damaged at byte {at}: {why}", file=name, offset=at)
        yield reader.end - told


def _header(files: Files, name: str, number: int) -> SegmentHeader | None:
    """None: nothing was written to it yet."""
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
    """Yield the size of each table of LevelDB that was read. `now_s`: the clock of the files. Raises Corruption, naming
    file and byte."""
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
