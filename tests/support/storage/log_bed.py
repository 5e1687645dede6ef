"""Write a log to the disk as a node does, and damage it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgpack

from sandq.metadata import commands as m
from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.storage.files import RealFiles
from sandq.storage.wal import Kind, Record, Wal

NOW_MS = 1_800_000_000_000
GROUP = 3
SEGMENT_BYTES = 65_536


def append(*values: bytes) -> c.Append:
    return c.Append(encode({Column.VALUE: list(values)}), producer_id=7, epoch=1, sequence=2)


def entry(index: int, *commands: c.Command, group: int = GROUP) -> Record:
    return Kind.ENTRY, group, index, 1, b"\0" + c.Entry(NOW_MS, commands).encode()


def members(group: int = GROUP) -> Record:
    return Kind.BASE, group, 1, 0, msgpack.packb([["n1#1"], []])


def no_op(index: int, group: int = GROUP) -> Record:
    return Kind.ENTRY, group, index, 1, b"\x01"


def metadata(index: int, *commands: m.Command) -> Record:
    return Kind.ENTRY, 0, index, 1, b"\0" + m.Entry(NOW_MS, commands).encode()


def write_log(directory: Path, batches: Iterable[list[Record]], *, seal: bool = True) -> Path:
    """Write a log to `wal`, in segments of 64 KiB, and return the data directory."""
    wal, _ = Wal.open(RealFiles(directory), segment_bytes=SEGMENT_BYTES, known_groups=lambda group: True)
    for records in batches:
        wal.commit(records)
    if seal:
        wal.seal()
    else:
        wal.close()
    return directory


def segment(directory: Path, number: int = 1) -> Path:
    return directory / "wal" / f"{number:010}.wal"


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def picture(directory: Path) -> dict[str, tuple[int, int]]:
    """Return every file below the directory, with its size and modification time."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
    }
