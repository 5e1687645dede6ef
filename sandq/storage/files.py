"""The port through which storage touches a disk, and its real implementation.

`Files` is one directory tree; names are relative to its root and use `/`. What is durable, and when:

- `File.write_at` is visible at once and durable only after `File.sync` returned.
- `open(create_bytes=...)`, `replace`, `remove`, `make_dir` are durable when they return.
- After a failed `sync` nothing is known about what was written since the last one: the caller never retries,
  it stops (the kernel may have marked the pages clean; a second sync would then answer success for lost
  bytes).

Errors: a failed operation raises `StorageFailed` whose details hold `operation`, `file` and `errno` (its
name, as "ENOSPC"); a missing name raises `FileNotFoundError`, an existing one where a new one is wanted
`FileExistsError`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from sandq.model.errors import DataDirInUse, StorageFailed

Buffer = bytes | bytearray | memoryview
_ZEROS = bytes(1 << 20)
TEMPORARY = ".tmp"
"""Ends the name under which `replace` writes before it renames."""
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Of what is made: what messages hold is for their owner alone."""


class File(Protocol):
    """One open file, read and written at explicit offsets (bytes)."""

    def write_at(self, offset: int, data: Buffer) -> None: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes from `offset`, at most `size`; fewer at the end of the file."""
        ...

    def sync(self) -> None:
        """Durable when it returns: what was written, and the size (fdatasync)."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock on the tree; the operating system drops it when the process ends."""

    def close(self) -> None: ...


class Files(Protocol):
    """One directory tree."""

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        """Open a file for reading and writing. With `create_bytes` it must not exist: it is created with that
        many zero bytes, and they and its name are durable when this returns."""
        ...

    def read(self, name: str) -> bytes: ...

    def replace(self, name: str, data: bytes) -> None:
        """Make `data` the whole content of `name`: a reader after any crash finds the old or the new one. After an
        error it is the old one, unless `may_have_happened` says that nobody knows."""
        ...

    def remove(self, name: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """Sorted names of the files and directories in it, temporary ones included."""
        ...

    def exists(self, name: str) -> bool: ...

    def make_dir(self, directory: str) -> None:
        """Create a directory and what is missing above it; one that exists is fine."""
        ...

    def sync_dir(self, directory: str) -> None: ...

    def lock(self, name: str) -> Lock:
        """Take the exclusive lock called `name`, or raise `DataDirInUse` at once."""
        ...

    def free_bytes(self) -> int: ...


def failed(operation: str, name: str, error: OSError) -> StorageFailed:
    """The error of this port for one of the operating system's."""
    code = errno.errorcode.get(error.errno or 0, "EIO")
    reason = error.strerror or str(error)
    return StorageFailed(f"cannot {operation} {name}: {reason} ({code})", operation=operation, file=name, errno=code)


def is_full(error: StorageFailed) -> bool:
    """Of an operation that failed: there was no room for it."""
    return error.details.get("errno") in ("ENOSPC", "EDQUOT")


def may_have_happened(error: StorageFailed) -> bool:
    """Of a `replace` that failed: the new content is there, and only its directory could not be synced. A crash may
    bring the old one back, or not."""
    return error.details.get("operation") == "sync"


@contextlib.contextmanager
def _translated(operation: str, name: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise failed(operation, name, error) from error


def write_fully(descriptor: int, data: Buffer, offset: int) -> None:
    """pwrite until everything is written: a nearly full disk writes a part first."""
    rest = memoryview(data).cast("B")
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest = rest[written:]
        offset += written


class RealFile:
    """A file descriptor."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor

    def write_at(self, offset: int, data: Buffer) -> None:
        try:
            if os.pwrite(self._descriptor, data, offset) != len(data):
                write_fully(self._descriptor, data, offset)
        except OSError as error:
            raise failed("write", self._name, error) from error

    def read_at(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        with _translated("read", self._name):
            while size > 0:
                part = os.pread(self._descriptor, size, offset)
                if not part:
                    break
                parts.append(part)
                size -= len(part)
                offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise failed("sync", self._name, error) from error

    def size(self) -> int:
        with _translated("stat", self._name):
            return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealLock:
    """An flock, held by its open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def flock(path: Path) -> RealLock:
    """Take the exclusive lock of a file, created when missing; `DataDirInUse` names its directory."""
    with _translated("open", str(path)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            message = f"another process uses the data directory {path.parent.resolve()} (lock {path.name})"
            raise DataDirInUse(message, path=str(path)) from error
        raise failed("lock", str(path), error) from error
    return RealLock(descriptor)


def sync_directory(path: Path) -> None:
    """fsync a directory: the names in it are durable when this returns."""
    with _translated("sync", str(path)):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """`Files.replace` for a path."""
    temporary = path.with_name(path.name + TEMPORARY)
    with _translated("replace", str(path)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # of a crash; or somebody's link to a file that is not to be written
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                write_fully(descriptor, data, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    sync_directory(path.parent)


class RealFiles:
    """A directory of the real disk, created when missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        _make_directories(self.root)

    def path(self, name: str) -> Path:
        """Where `name` lies, for those who must hand a path on (LevelDB)."""
        return self.root / name

    def open(self, name: str, *, create_bytes: int | None = None) -> RealFile:
        path = self.path(name)
        if create_bytes is None:
            with _translated("open", str(path)):
                return RealFile(str(path), os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return self._create(path, create_bytes)

    def _create(self, path: Path, size: int) -> RealFile:
        # Zeros are written, not only reserved: an fdatasync after writing into reserved but unwritten blocks
        # also has to commit the journal (measured: 0.13 ms becomes 0.19 ms for 4 KB, 0.3 becomes 0.75 for 1
        # MB).
        with _translated("create", str(path)):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            try:
                for offset in range(0, size, len(_ZEROS)):
                    write_fully(descriptor, _ZEROS[: size - offset], offset)
                os.fsync(descriptor)
            except OSError:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        try:
            sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return RealFile(str(path), descriptor)

    def read(self, name: str) -> bytes:
        path = self.path(name)
        with _translated("read", str(path)):
            return path.read_bytes()

    def replace(self, name: str, data: bytes) -> None:
        replace_file(self.path(name), data)

    def remove(self, name: str) -> None:
        path = self.path(name)
        with _translated("remove", str(path)):
            os.unlink(path)
        sync_directory(path.parent)

    def list(self, directory: str) -> list[str]:
        path = self.path(directory)
        with _translated("list", str(path)):
            return sorted(os.listdir(path))

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def make_dir(self, directory: str) -> None:
        _make_directories(self.path(directory))

    def sync_dir(self, directory: str) -> None:
        sync_directory(self.path(directory))

    def lock(self, name: str) -> RealLock:
        return flock(self.path(name))

    def free_bytes(self) -> int:
        with _translated("stat", str(self.root)):
            status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize


def _make_directories(path: Path) -> None:
    if path.is_dir():
        return
    _make_directories(path.parent)
    with _translated("create", str(path)), contextlib.suppress(FileExistsError):
        path.mkdir(DIRECTORY_MODE)
    sync_directory(path.parent)
