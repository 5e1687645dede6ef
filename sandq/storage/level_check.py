"""Check LevelDB's own files, because LevelDB tolerates damage that sandq must detect.

Measured with LevelDB 1.22 and 1.23, `paranoid_checks` on: if a byte in the length of a MANIFEST record is flipped,
LevelDB takes the rest of the file for a torn end, and silently rolls the database back to an earlier state. (It reads a
MANIFEST below 32 KiB as a whole, and accepts any bad length at its end.) Therefore:

- A **mark** file in the same directory has the name of the MANIFEST and the number of its bytes that were synced. They
  must still be whole records. The bytes after them may be torn, as LevelDB assumes.
- If CURRENT is missing, LevelDB would create an empty database over the tables. This is refused.
- If LevelDB finds a damaged block, the tables are searched for it here, so that the error can name the file.

The mark (envelope: small_file.py, magic "SANDQMRK", version 1) is msgpack `[MANIFEST's name, bytes]`.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from google_crc32c import value

from sandq.model.errors import Corruption
from sandq.storage import small_file
from sandq.storage.files import replace_file

MARK = "SANDQ-MARK"
_MAGIC, _VERSION = b"SANDQMRK", 1
_MANIFEST = re.compile(r"MANIFEST-(\d{6,})")
_TABLE = re.compile(r"\d{6,}\.(ldb|sst)")
_LOG = re.compile(r"(\d{6,})\.log")

_BLOCK_BYTES = 32768
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_TABLE_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5


def log_numbers(directory: Path) -> list[int]:
    """Return the numbers of LevelDB's own logs, ascending."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := _LOG.fullmatch(name)))


def remove_logs(directory: Path) -> None:
    """Delete LevelDB's own logs.

    After a power loss, LevelDB silently skips damaged blocks in its logs, so their content cannot be trusted. The WAL
    has the same content. LevelDB opens without them: the log number in the MANIFEST is only a lower bound."""
    for name in os.listdir(directory):
        if _LOG.fullmatch(name):
            os.unlink(directory / name)


class StoresDamaged(Corruption):
    """Raised if a file of the stores is damaged, so that no row of any group can be trusted."""


def _damaged(path: Path, why: str, offset: int | None = None) -> StoresDamaged:
    where = "" if offset is None else f" at byte {offset}"
    details: dict[str, object] = {"file": str(path)} if offset is None else {"file": str(path), "offset": offset}
    return StoresDamaged(f"{path} is damaged{where}: {why}", **details)


def check_directory(directory: Path) -> bool:
    """Return whether a directory contains a database.

    Raise `StoresDamaged` if LevelDB would silently repair it or overwrite it."""
    names = set(os.listdir(directory))
    current = directory / "CURRENT"
    if "CURRENT" not in names:
        manifests = {name for name in names if _MANIFEST.fullmatch(name)}
        # An interrupted creation leaves the first MANIFEST and nothing else.
        if MARK in names or manifests - {"MANIFEST-000001"} or any(_TABLE.fullmatch(name) for name in names):
            raise _damaged(current, "it is missing, but the files of a database are there")
        return False
    content = current.read_bytes()
    manifest = content[:-1].decode("ascii", "replace")
    if content[-1:] != b"\n" or not _MANIFEST.fullmatch(manifest) or manifest not in names:
        raise _damaged(current, f"it names {manifest!r}, which is no MANIFEST in this directory")
    _check_manifest(directory, manifest)
    return True


def _check_manifest(directory: Path, manifest: str) -> None:
    path = directory / manifest
    synced = 0
    mark = directory / MARK
    if mark.exists():
        name, size = small_file.decode(mark.read_bytes(), _MAGIC, _VERSION, str(mark))
        if name == manifest:
            synced = size
        elif _number(name) > _number(manifest):
            raise _damaged(directory / "CURRENT", f"it names {manifest}, but {name} was in use already")
    end = max(record_ends(path.read_bytes()), default=0)
    if end < synced or end == 0:
        raise _damaged(path, f"{synced or 'its first'} bytes had been synced", end)


def _number(manifest: str) -> int:
    return int(manifest.rpartition("-")[2])


def record_ends(data: bytes, offset: int = 0) -> Iterator[int]:
    """Yield the end of each whole record of a file in LevelDB's log format (for example a MANIFEST), up to the first
    damage.

    `offset`: start position; 0, or an end that was yielded before. The format: blocks of 32 KiB, each a sequence of
    fragments with crc, length and kind (LevelDB's doc/log_format.md)."""
    at, inside = offset, False
    while True:
        left = -at % _BLOCK_BYTES or _BLOCK_BYTES
        if left < _FRAGMENT.size:
            # The end of a block that is too short for a fragment header must be zeros.
            if any(data[at : at + left]):
                return
            at += left
            continue
        if at + _FRAGMENT.size > len(data):
            return
        crc, length, kind = _FRAGMENT.unpack_from(data, at)
        end = at + _FRAGMENT.size + length
        if length > left - _FRAGMENT.size or end > len(data) or _masked(data[at + 6 : end]) != crc:
            return
        if kind not in ((_MIDDLE, _LAST) if inside else (_FULL, _FIRST)):
            return
        inside = kind in (_FIRST, _MIDDLE)
        at = end
        if not inside:
            yield at


def _masked(data: bytes) -> int:
    """Return LevelDB's masked crc32c, as it is stored."""
    crc = int(value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_mark(directory: Path, last: tuple[str, int] = ("", 0)) -> tuple[str, int]:
    """Sync the MANIFEST, and write to the mark file how many bytes of it are whole records.

    Return the MANIFEST's name and that number of bytes. `last`: the return value of the previous call, if any.
    """
    manifest = (directory / "CURRENT").read_bytes()[:-1].decode("ascii")
    descriptor = os.open(directory / manifest, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    begin = last[1] if last[0] == manifest else 0
    end = max(record_ends(data, begin), default=begin)
    replace_file(directory / MARK, small_file.encode(_MAGIC, _VERSION, [manifest, end]))
    return manifest, end


# tables


def find_damaged_table(directory: Path) -> StoresDamaged | None:
    """Read every block of every table. Return an error for the first damaged block, with file and byte. None if no
    block is damaged."""
    for name in sorted(os.listdir(directory)):
        if is_table(name):
            path = directory / name
            try:
                problem = check_table(path.read_bytes())
            except OSError:
                continue  # a compaction has removed the file, or the disk fails: this does not prove damage
            if problem is not None:
                return _damaged(path, problem[1], problem[0])
    return None


def is_table(name: str) -> bool:
    """Return whether a file of a database is a table, by its name."""
    return _TABLE.fullmatch(name) is not None


def check_table(data: bytes) -> tuple[int, str] | None:
    """Check every block of a table. Return (offset of the first damaged block, reason). None if no block is damaged."""
    footer = len(data) - _FOOTER_BYTES
    if footer < 0 or data[-8:] != _TABLE_MAGIC:
        return max(footer, 0), "no table footer"
    try:
        _, at = _handle(data, footer)
        index, _ = _handle(data, at)
        problem = _check_block(data, *index)
        if problem is not None:
            return problem
        for block in _handles_of_index(data[index[0] : index[0] + index[1]]):
            problem = _check_block(data, *block)
            if problem is not None:
                return problem
    except (IndexError, ValueError, struct.error):
        return footer, "the footer or the index cannot be read"
    return None


def _check_block(data: bytes, offset: int, size: int) -> tuple[int, str] | None:
    end = offset + size
    stored = data[end + 1 : end + _TRAILER_BYTES]
    if len(stored) != 4 or _masked(data[offset : end + 1]) != int.from_bytes(stored, "little"):
        return offset, "a block's checksum does not match"
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _handles_of_index(block: bytes) -> Iterator[tuple[int, int]]:
    restarts = int.from_bytes(block[-4:], "little")
    end, at = len(block) - 4 - 4 * restarts, 0
    while at < end:
        _, at = _varint(block, at)
        unshared, at = _varint(block, at)
        length, at = _varint(block, at)
        yield _handle(block, at + unshared)[0]
        at += unshared + length
