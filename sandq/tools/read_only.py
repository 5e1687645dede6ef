"""A read-only implementation of `Files` (storage/files.py) for a real directory. It discards writes.

With it, the recovery code of the storage can read a log and report its state, without repairing anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from sandq.model.errors import StorageFailed
from sandq.storage.files import Buffer, Lock, failed


class ReadOnlyFile:
    """An open file that discards writes."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._file = path.open("rb", buffering=0)

    def write_at(self, offset: int, data: Buffer) -> None:
        """Do nothing."""

    def read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def sync(self) -> None:
        """Do nothing."""

    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()


class ReadOnlyFiles:
    """The files below `root`, which must exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: list[ReadOnlyFile] = []

    def open(self, name: str, *, create_bytes: int | None = None) -> ReadOnlyFile:
        if create_bytes is not None:
            raise self._refused("create", name)
        try:
            file = ReadOnlyFile(name, self.root / name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("open", name, error) from error
        self._open.append(file)
        return file

    def read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("read", name, error) from error

    def replace(self, name: str, data: bytes) -> None:
        raise self._refused("replace", name)

    def remove(self, name: str) -> None:
        """Do nothing."""

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / directory))
        except OSError as error:
            raise failed("list", directory, error) from error

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def make_dir(self, directory: str) -> None:
        if not self.exists(directory):
            raise self._refused("create", directory)

    def sync_dir(self, directory: str) -> None:
        """Do nothing."""

    def lock(self, name: str) -> Lock:
        raise self._refused("lock", name)

    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        """Close all files that `open` returned."""
        for file in self._open:
            file.close()
        self._open.clear()

    @staticmethod
    def _refused(operation: str, name: str) -> StorageFailed:
        return StorageFailed(
            f"cannot {operation} {name}: the directory is open read-only", operation=operation, file=name
        )


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock of this file. False if the file does not exist.

    The function acquires a shared lock and releases it immediately; it writes nothing to the disk. If a node starts
    within these microseconds, it cannot get its lock, and fails.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_holder(path: Path) -> int | None:
    """Return the id of the process that holds the lock of a file; None if the kernel does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = path.stat()
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and wanted in fields:
                pid = int(fields[fields.index(wanted) - 1])
                return pid if pid > 0 else None
    return None
