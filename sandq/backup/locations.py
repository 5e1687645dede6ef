"""Locations for backups: a directory, or a URL that fsspec supports. Everything here is blocking.

A file is either complete or absent: in a directory it gets its name once it is on disk, elsewhere when the store has
accepted it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from sandq.backup.errors import NoBackup
from sandq.model.errors import ConfigError, Conflict, SandqError, StorageFailed

try:
    import fcntl
except ImportError:  # not available on every platform of clients
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
"""Name of the lock file in a backup. The lock is held while the backup is made or deleted."""
PARTIAL = ".partial"
"""Suffix of a file that is being written."""


class Location(Protocol):
    """A location for backups. Names are relative, with "/" as separator. All methods raise StorageFailed."""

    shown: str
    """Name in messages, without credentials."""

    def create(self, name: str) -> Any:
        """Return a context in which a file is written; the file exists once the context ends without an error."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file. Raises NoBackup if it does not exist."""
        ...

    def exists(self, name: str) -> bool: ...

    def folders(self) -> list[str]:
        """Return the folders at the top level."""
        ...

    def files(self, folder: str) -> list[str]:
        """Return the files in a folder, sorted by name; none if the folder does not exist."""
        ...

    def hold(self, folder: str) -> AbstractContextManager[None]:
        """Return a context in which no other process writes or deletes a folder, if the location supports locks.

        Raises Conflict if another process does.
        """
        ...

    def remove(self, folder: str, first: str) -> None:
        """Delete a folder with its content, the file `first` before all others. A missing folder is no error.

        Raises Conflict if another process writes it.
        """
        ...


def open_location(url: str) -> Location:
    """Return the location for a URL or a path. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Directory(Path(url).expanduser())
    if scheme == "file":
        return Directory(Path(rest if rest.startswith("/") else f"/{rest}"))
    return _Remote(url)


@contextmanager
def failing(shown: str) -> Iterator[None]:
    """Convert errors inside the block to the errors of a location: StorageFailed, NoBackup."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoBackup(f"{shown} is not there") from error
    except OSError as error:
        raise StorageFailed(f"{shown}: {error.strerror or error}") from error
    except Exception as error:
        if isinstance(error, SandqError) or type(error).__module__ == "builtins":
            raise
        # Stores behind fsspec have their own errors, for example for credentials, names and protocols.
        raise StorageFailed(f"{shown}: {type(error).__name__}: {error!s:.300}") from error


class Directory:
    """A directory of this machine, or a mounted one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = str(path)

    @contextmanager
    def hold(self, folder: str) -> Iterator[None]:
        """Lock the folder; the lock ends with the process."""
        if fcntl is None:
            yield
            return
        path = self._path / folder / LOCK
        with failing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"backup {folder} in {self.shown} is being made or deleted by another process") from None
            except OSError:
                pass  # the file system has no locks
            yield
        finally:
            os.close(number)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._path / name
        partial = path.with_name(path.name + PARTIAL)
        with failing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.unlink(missing_ok=True)  # left over from a stopped process
            try:
                with open(partial, "wb", opener=_private) as stream:
                    yield cast(BinaryIO, stream)
                    stream.flush()
                    os.fsync(stream.fileno())
            except BaseException:
                with suppress(OSError):
                    partial.unlink()
                raise
            partial.rename(path)
            _sync(path.parent)

    def open(self, name: str) -> BinaryIO:
        with failing(str(self._path / name)):
            return cast(BinaryIO, (self._path / name).open("rb"))

    def exists(self, name: str) -> bool:
        with failing(str(self._path / name)):
            return (self._path / name).is_file()

    def folders(self) -> list[str]:
        with failing(str(self._path)):
            if not self._path.exists():
                return []
            return sorted([one.name for one in self._path.iterdir() if one.is_dir()])

    def files(self, folder: str) -> list[str]:
        path = self._path / folder
        with failing(str(path)):
            if not path.is_dir():
                return []
            return sorted([one.name for one in path.iterdir() if one.is_file() and one.suffix != PARTIAL])

    def remove(self, folder: str, first: str) -> None:
        path = self._path / folder
        with failing(str(path)), suppress(FileNotFoundError):
            if not path.is_dir():
                return
            with self.hold(folder):
                with suppress(FileNotFoundError):
                    (path / first).unlink()
                    _sync(path)
                shutil.rmtree(path)


class _Remote:
    """A store that fsspec supports."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise ConfigError(
                "backups to a URL need the package fsspec, and that for the kind of URL (s3fs, gcsfs, ...): "
                "pip install 'sandq-client[backup]'"
            ) from None
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
        except Exception as error:
            raise ConfigError(f"{_without_secrets(url)}: {error}") from None
        self.shown = _without_secrets(url)

    def _name(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _shown(self, name: str) -> str:
        return f"{self.shown.rstrip('/')}/{name}"

    def hold(self, folder: str) -> AbstractContextManager[None]:
        """Do nothing: such stores have no locks."""
        return nullcontext()

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._name(name)
        with failing(self._shown(name)):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            stream = self._files.open(path, "wb")
            try:
                yield stream
            except BaseException:
                # Discard the file if the store can. If the file stays, readers ignore it, because its end is missing.
                with suppress(Exception):
                    stream.discard()
                raise
            stream.close()

    def open(self, name: str) -> BinaryIO:
        with failing(self._shown(name)):
            return cast(BinaryIO, self._files.open(self._name(name), "rb"))

    def exists(self, name: str) -> bool:
        with failing(self._shown(name)):
            return bool(self._files.exists(self._name(name)))

    def folders(self) -> list[str]:
        with failing(self.shown):
            return self._names(self._path, "directory")

    def files(self, folder: str) -> list[str]:
        with failing(self._shown(folder)):
            return self._names(self._name(folder), "file")

    def _names(self, path: str, kind: str) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(path):
            return []
        found = self._files.ls(path, detail=True)
        return sorted([one["name"].rstrip("/").rpartition("/")[2] for one in found if one["type"] == kind])

    def remove(self, folder: str, first: str) -> None:
        with failing(self._shown(folder)):
            if self._files.exists(self._name(f"{folder}/{first}")):
                self._files.rm(self._name(f"{folder}/{first}"))
            if self._files.exists(self._name(folder)):
                self._files.rm(self._name(folder), recursive=True)


def _without_secrets(url: str) -> str:
    """Return a URL without user name, password and query string."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
