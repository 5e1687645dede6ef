"""The files of the audit log: `audit-0000000001.jsonl` and so on, with JSON lines. Lines are appended to the last file,
and the oldest files are deleted.

A *position* is text, `file number:bytes`. Lines at that position and after it were written later.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandq.model.errors import InvalidRequest

_NAME: Final = re.compile(r"audit-([0-9]{10})\.jsonl")
_POSITION: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,12})")
_CHUNK_BYTES: Final = 64 << 10
READ_BYTES: Final = 2 << 20
"""Approximate bytes that are read at once."""
_MODE, _DIRECTORY_MODE = 0o600, 0o700


class AuditFiles:
    """The files of one node. One thread appends; any thread may read."""

    def __init__(self, directory: Path, file_bytes: int, files: int) -> None:
        """`file_bytes`: size at which a new file is begun. `files`: number of files that are kept."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._files = files
        self._fd: int | None = None
        self._number = 0
        self._size = 0
        self._is_torn = False
        """Whether the file ends in the middle of a line, because the disk was full or the node was killed."""

    @property
    def capacity_bytes(self) -> int:
        """Approximate size of all files that are kept, in bytes."""
        return self._file_bytes * self._files

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, data: bytes) -> None:
        """Write whole lines. Raise OSError if some of the lines may not have been written."""
        try:
            if self._fd is None:
                self._open()
            if self._size and self._size + len(data) > self._file_bytes:
                self._begin_next_file()
            assert self._fd is not None
            rest = memoryview(b"\n" + data if self._is_torn else data)
            while rest:
                written = os.write(self._fd, rest)
                self._size += written
                self._is_torn = True
                rest = rest[written:]
            self._is_torn = False
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the current file. `append` opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        """Open the last file, and create the directory if there is none."""
        self._directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._begin(max(self._numbers(), default=1))

    def _begin(self, number: int) -> None:
        """Open the file with this number, or create it."""
        fd = os.open(self._path(number), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._fd, self._number, self._size = fd, number, os.fstat(fd).st_size
        self._is_torn = bool(self._size) and os.pread(fd, 1, self._size - 1) != b"\n"

    def _begin_next_file(self) -> None:
        """Begin the next file, and delete the oldest files beyond the limit."""
        self.close()
        self._begin(self._number + 1)
        for number in self._numbers()[: -self._files]:
            with suppress(OSError):
                self._path(number).unlink()

    def _path(self, number: int) -> Path:
        """Return the path of the file with this number."""
        return self._directory / f"audit-{number:010d}.jsonl"

    def _numbers(self) -> list[int]:
        """Return the numbers of all files, sorted."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted([int(found[1]) for name in names if (found := _NAME.fullmatch(name)) is not None])

    # -- reading --------------------------------------------------------------------------------------------------

    def last(self, most: int) -> tuple[list[bytes], str]:
        """Return the last lines, oldest first, and the position after them. Raise OSError."""
        lines: list[bytes] = []
        position = "0:0"
        for number in reversed(self._numbers()):
            found, end, is_all = self._tail(number, most - len(lines))
            if position == "0:0":
                position = f"{number}:{end}"
            lines[:0] = found
            if len(lines) >= most or not is_all:
                break
        return lines, position

    def _tail(self, number: int, most: int) -> tuple[list[bytes], int, bool]:
        """Return the last whole lines of a file, their end, and whether the file has no lines before them."""
        try:
            fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # deleted meanwhile
            return [], 0, True
        try:
            start = size = os.fstat(fd).st_size
            data = b""
            while start and data.count(b"\n") <= most and len(data) < READ_BYTES:
                start = max(start - _CHUNK_BYTES, 0)
                data = os.pread(fd, min(_CHUNK_BYTES, size - start - len(data)), start) + data
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines()
        if start and lines:
            del lines[0]  # reading began in the middle of it
        return lines[-most:], start + end, not start

    def after(self, position: str, most: int) -> tuple[list[bytes], str]:
        """Return the lines from a position on, and the position after them.

        If the lines at the position are deleted, begin with the oldest existing line. Raise InvalidRequest or
        OSError."""
        number, offset = parse_position(position)
        numbers = self._numbers()
        if numbers and number > numbers[-1]:
            number, offset = 0, 0  # the files were deleted and numbered from the start again
        lines: list[bytes] = []
        for other in [other for other in numbers if other >= number]:
            begin = offset if other == number else 0
            found, end, is_all = self._read(other, begin, most - len(lines))
            lines += found
            position = f"{other}:{end}"
            if len(lines) >= most or not is_all:
                break
        return lines, position

    def _read(self, number: int, start: int, most: int) -> tuple[list[bytes], int, bool]:
        """Return whole lines, their end, and whether they reach the end of the file."""
        try:
            fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return [], start, True
        try:
            if start > os.fstat(fd).st_size:
                start = 0
            data = os.pread(fd, READ_BYTES, start)
        finally:
            os.close(fd)
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)[:most]
        is_all = len(data) < READ_BYTES
        return [line.rstrip(b"\r\n") for line in lines], start + sum(map(len, lines)), is_all


def parse_position(text: str) -> tuple[int, int]:
    """Return the file number and the position in the file. Raise InvalidRequest."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"after: {text[:40]!r} is not a position in an audit log: leave it out, or use one from a reply"
        )
    return int(found[1]), int(found[2])
