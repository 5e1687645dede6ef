"""Read files with secrets. Only the owner may have access to such a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sandq.model.errors import StartupError

Version = tuple[int, int, int]
"""(modification time in ns, inode, size) of a file. It changes when the file is written or replaced."""

MOST_BYTES: Final = 16 << 10
OTHERS: Final = 0o077
"""Bits of a file mode that give access to users other than the owner."""


def version_of(path: Path) -> Version | None:
    """Return the version of a file, which changes when the file is written or replaced. None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_private(path: Path, setting: str) -> bytes:
    """Return the content of the file that a setting names.

    Raise StartupError if the file is missing, is longer than `MOST_BYTES`, or gives access to users other than its
    owner."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StartupError(f"{setting} {path} cannot be read: {error.strerror or error}") from None
    if mode & OTHERS:
        raise StartupError(
            f"{setting} {path} is open to others than its owner (mode {mode & 0o777:o}): chmod 600 {path}"
        )
    if len(content) > MOST_BYTES:
        raise StartupError(f"{setting} {path} has more than {MOST_BYTES} bytes")
    return content
