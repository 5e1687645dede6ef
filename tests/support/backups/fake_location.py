"""Provide a backup store in memory that can simulate the end of the process at any call."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO

from sandq.backup.errors import NoBackup
from sandq.model.errors import StorageFailed


class Killed(StorageFailed):
    """The process was killed."""


class BrokenPipe(Exception):
    """An error that the store itself raises, as the stores behind fsspec do."""


class _Stream(io.BytesIO):
    def __init__(self, location: FakeLocation, name: str) -> None:
        super().__init__()
        self._place = location
        self._name = name

    def write(self, data: object) -> int:
        self._place.call()
        if self.tell() > 0 and (error := self._place.refuses(self._name)) is not None:
            raise error
        return super().write(data)  # type: ignore[arg-type]


class FakeLocation:
    """A store in which a file exists only after it was written completely."""

    shown = "backups"

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.calls = 0
        self.refuses: Callable[[str], Exception | None] = lambda name: None
        """Function (file name) -> error to raise in a write after the file's first bytes; None accepts the write."""
        self.dies_at: int | None = None
        """Number of the call, counted from 0, in which the process is killed; all later calls fail, too."""

    def call(self) -> None:
        if self.dies_at is not None and self.calls >= self.dies_at:
            raise Killed("killed")
        self.calls += 1

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        self.call()
        stream = _Stream(self, name)
        yield stream
        self.call()
        self.data[name] = stream.getvalue()
        self.call()

    def open(self, name: str) -> BinaryIO:
        self.call()
        if name not in self.data:
            raise NoBackup(f"{name} is not there")
        return io.BytesIO(self.data[name])

    def exists(self, name: str) -> bool:
        self.call()
        return name in self.data

    def folders(self) -> list[str]:
        self.call()
        return sorted({name.split("/")[0] for name in self.data})

    def files(self, folder: str) -> list[str]:
        self.call()
        behind = [name.removeprefix(f"{folder}/") for name in self.data if name.startswith(f"{folder}/")]
        return sorted([name for name in behind if "/" not in name])

    def hold(self, folder: str) -> AbstractContextManager[None]:
        return nullcontext()

    def remove(self, folder: str, first: str) -> None:
        for name in [name for name in self.data if name.startswith(f"{folder}/")]:
            del self.data[name]
