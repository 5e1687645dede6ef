"""Paths of Unix sockets, which the system limits to about a hundred bytes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandq.model.errors import InvalidRequest

SOCKET_NAME: Final = "socket"
"""Name of the Unix socket in a data directory."""
PATH_BYTES: Final = 107 if sys.platform == "linux" else 103
"""Maximum length of the path of a Unix socket, without its final zero byte."""
_DESCRIPTORS: Final = "/proc/self/fd"


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Return a path of a Unix socket that the system accepts. It is valid in the block.

    Linux reaches a long path by a descriptor of its directory. Raises InvalidRequest if the path is too long elsewhere,
    OSError if the directory cannot be opened."""
    if len(os.fsencode(path)) <= PATH_BYTES:
        yield path
        return
    if not os.path.isdir(_DESCRIPTORS):
        raise InvalidRequest(
            f"the path of the socket is longer than {PATH_BYTES} bytes, which this system allows: {path}"
        )
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def socket_of(data_dir: Path) -> Path:
    """Return the path of the Unix socket of the node whose data is in this directory."""
    return data_dir / SOCKET_NAME
