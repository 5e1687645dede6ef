"""The files of a backup's increments: each is there as a whole or not at all. All of it blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO

from sandq.backup import chain
from sandq.backup.chain import Entries, Summary
from sandq.backup.errors import DamagedBackup, NoBackup, TruncatedBackup
from sandq.backup.file_format import Reader, Writer
from sandq.backup.keys import BackupKey
from sandq.backup.places import Place, failing


def count(place: Place, backup_id: str) -> int:
    """How many increments a backup has. Raises DamagedBackup: one is missing among them."""
    found = [chain.number_of(name) for name in place.files(f"{backup_id}/{chain.FOLDER}")]
    numbers = sorted([number for number in found if number is not None])
    for expected, number in enumerate(numbers):
        if number != expected:
            name = f"{place.shown}/{backup_id}/{chain.name_of(expected)}"
            raise DamagedBackup(name, 0, f"the file is missing, and increment {number} is there")
    return len(numbers)


class IncrementReader:
    """Reads an increment, block by block. For one thread at a time."""

    def __init__(self, place: Place, backup_id: str, number: int, key: BackupKey | None) -> None:
        """Raises DamagedBackup, WrongKey."""
        self.number = number
        name = chain.name_of(number)
        self.shown = f"{place.shown}/{backup_id}/{name}"
        try:
            self._stream = place.open(f"{backup_id}/{name}")
        except NoBackup:
            raise DamagedBackup(self.shown, 0, "the file is missing") from None
        try:
            self._reader = Reader(self._stream, backup_id, name, key, self.shown)
        except BaseException:
            self._stream.close()
            raise
        self.salt = self._reader.salt
        """No other file has it."""
        self.at = self._reader.at
        """Where the block stands that was read last."""
        self.summary: Summary | None = None
        """Once all was read."""
        self.digest = b""
        """Of its summary."""

    def entries(self) -> Iterator[Entries]:
        """Yield all entries; then there is the summary. Raises DamagedBackup."""
        with self._stream:
            for block in self._blocks():
                found = self._decoded(block)
                if isinstance(found, Entries):
                    yield found
                else:
                    self._take_summary(found, block)

    def read_summary(self) -> Summary:
        """Read all of it, and return its summary. Raises DamagedBackup."""
        with self._stream:
            for block in self._blocks():
                if chain.is_summary(block):
                    found = self._decoded(block)
                    assert isinstance(found, Summary)
                    self._take_summary(found, block)
        assert self.summary is not None
        return self.summary

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()

    def _blocks(self) -> Iterator[bytes]:
        while True:
            at = self._reader.at
            block = self._reader.next()
            if block is None:
                break
            self.at = at
            if self.summary is not None:
                raise self.wrong("there is something behind its summary")
            yield block
        if self.summary is None:
            raise self.wrong("it has no summary")

    def _decoded(self, block: bytes) -> Entries | Summary:
        try:
            return chain.decode(block)
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def _take_summary(self, found: Summary, block: bytes) -> None:
        if found.number != self.number:
            raise self.wrong(f"it says that it is increment {found.number}, and stands where {self.number} is expected")
        self.summary, self.digest = found, chain.digest_of(block)

    def wrong(self, why: str) -> DamagedBackup:
        """Return what is to be raised of the block that was read last."""
        return DamagedBackup(self.shown, self.at, why)


def read_summary(place: Place, backup_id: str, number: int, key: BackupKey | None) -> tuple[Summary, bytes]:
    """Read an increment; its summary, and the digest of that. Raises DamagedBackup, WrongKey."""
    reader = IncrementReader(place, backup_id, number, key)
    return reader.read_summary(), reader.digest


def is_stopped(place: Place, backup_id: str, number: int, key: BackupKey | None) -> bool:
    """Whether an increment has no end: who wrote it was stopped, at a store that shows such files. Raises
    DamagedBackup, WrongKey."""
    try:
        read_summary(place, backup_id, number, key)
    except TruncatedBackup:
        return True
    return False


def salt_of(place: Place, backup_id: str, number: int, key: BackupKey | None) -> bytes:
    """Read what tells the file of an increment from all others. Raises DamagedBackup, WrongKey."""
    reader = IncrementReader(place, backup_id, number, key)
    reader.close()
    return reader.salt


class IncrementWriter:
    """Writes an increment; it is there once its summary is. For one thread at a time."""

    def __init__(self, place: Place, backup_id: str, number: int, key: BackupKey | None) -> None:
        self._context: AbstractContextManager[BinaryIO] | None = None
        self._shown = f"{place.shown}/{backup_id}/{chain.name_of(number)}"
        context = place.create(f"{backup_id}/{chain.name_of(number)}")
        stream = context.__enter__()
        self._context = context
        self._writer = Writer(stream, backup_id, chain.name_of(number), key)

    @property
    def salt(self) -> bytes:
        """No other file has it."""
        return self._writer.salt

    @property
    def size(self) -> int:
        """Bytes that were written so far."""
        return self._writer.bytes

    def write(self, block: bytes) -> None:
        """Add a block."""
        with failing(self._shown):
            self._writer.write(block)

    def end(self, summary: Summary) -> bytes:
        """Write the summary, and let the increment be there. The digest of the summary."""
        block = summary.encode()
        with failing(self._shown):
            self._writer.write(block)
            self._writer.end()
        context, self._context = self._context, None
        assert context is not None
        context.__exit__(None, None, None)
        return chain.digest_of(block)

    def give_up(self) -> None:
        """What was begun goes."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(NoBackup):
                context.__exit__(NoBackup, NoBackup("the increment was given up"), None)
