"""Files that hold secrets: only their owner may read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sandq.model.errors import StartupError

Version = tuple[int, int, int]
"""Of a file: another one once it was written or replaced."""

MOST_BYTES: Final = 16 << 10
OTHERS: Final = 0o077
"""What of a mode lets others than the owner in."""


def version_of(path: Path) -> Version | None:
    """What is another one once a file was written or replaced; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_private(path: Path, setting: str) -> bytes:
    """What the file that a setting names holds. StartupError when it is missing, longer than `MOST_BYTES`, or when
    others than its owner may read or write it."""
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
