"""Where backups are kept: a directory, or whatever fsspec knows by its URL. All of it blocks.

A file is there as a whole or not at all: in a directory it gets its name once it is on the disk, elsewhere when the
store has taken it.
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
except ImportError:  # not everywhere where clients are
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
"""In a backup: whoever makes or deletes it has it."""
PARTIAL = ".partial"
"""Behind the name of a file that is being written."""


class Place(Protocol):
    """Names are relative, with "/" between their parts. All raise StorageFailed."""

    shown: str
    """What it is called in messages: without what lets anybody in."""

    def create(self, name: str) -> Any:
        """A context in which a file is written, which is there once it ends well."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Raises NoBackup when there is none of this name."""
        ...

    def exists(self, name: str) -> bool: ...

    def folders(self) -> list[str]:
        """Those at the top."""
        ...

    def files(self, folder: str) -> list[str]:
        """Those in a folder, by name; none where there is no such folder."""
        ...

    def hold(self, folder: str) -> AbstractContextManager[None]:
        """A context in which nobody else writes or deletes a folder, as far as the place knows of such. Raises
        Conflict: somebody does."""
        ...

    def remove(self, folder: str, first: str) -> None:
        """Delete a folder and all there is in it, this file before all others; what is not there is no mistake. Raises
        Conflict: somebody writes it."""
        ...


def place_of(url: str) -> Place:
    """Where a URL or a path leads. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Directory(Path(url).expanduser())
    if scheme == "file":
        return Directory(Path(rest if rest.startswith("/") else f"/{rest}"))
    return _Remote(url)


@contextmanager
def failing(what: str) -> Iterator[None]:
    """A context whose errors are those of a place: StorageFailed, NoBackup."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoBackup(f"{what} is not there") from error
    except OSError as error:
        raise StorageFailed(f"{what}: {error.strerror or error}") from error
    except Exception as error:
        if isinstance(error, SandqError) or type(error).__module__ == "builtins":
            raise
        # Stores that fsspec reaches have errors of their own: of credentials, names, protocols.
        raise StorageFailed(f"{what}: {type(error).__name__}: {error!s:.300}") from error


class Directory:
    """Of this machine, or one that is mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = str(path)

    @contextmanager
    def hold(self, folder: str) -> Iterator[None]:
        """By a lock, which goes with the process that has it."""
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
                raise Conflict(f"backup {folder} in {self.shown} is being made, or deleted, by somebody else") from None
            except OSError:
                pass  # a file system that has no locks
            yield
        finally:
            os.close(number)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._path / name
        partial = path.with_name(path.name + PARTIAL)
        with failing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.unlink(missing_ok=True)  # of one that was stopped
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
    """By fsspec."""

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
        """Such stores have no locks."""
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
                # What was begun is given up where the store can; a file without its end is none in any case.
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
    """A URL without the name and password that may stand in it, and without what follows a question mark."""
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
