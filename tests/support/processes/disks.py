"""Give a node its own small disk, which is in memory. The mount namespace of the disk ends with the process."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

_IN_A_NAMESPACE = ("unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)))
_MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size="$1" none "$0" && shift && exec "$@"'
_CHUNK_BYTES = 1 << 20


def on_a_small_disk(directory: Path, mib: int) -> tuple[str, ...]:
    """Return the launcher of a process that sees a disk of `mib` MiB at `directory`."""
    return (*_IN_A_NAMESPACE, "sh", "-c", _MOUNT, str(directory), f"{mib}m")


def can_be_made(directory: Path) -> bool:
    """Return whether this user on this machine may mount disks."""
    try:
        return subprocess.run([*on_a_small_disk(directory, 1), "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def fill(file: Path) -> None:
    """Fill the disk until no byte is free."""
    size = _CHUNK_BYTES
    with file.open("wb", buffering=0) as ballast:
        while size:
            try:
                ballast.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                size //= 2
