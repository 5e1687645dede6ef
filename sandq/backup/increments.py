"""The files of a backup's increments: each is either complete or absent. All functions are blocking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO

from sandq.backup import chain
from sandq.backup.chain import Entries, Summary
from sandq.backup.errors import DamagedBackup, NoBackup, TruncatedBackup
from sandq.backup.file_format import Reader, Writer
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location, failing


def count(location: Location, backup_id: str) -> int:
    """Return the number of increments of a backup. Raises DamagedBackup if one of them is missing."""
    found = [chain.number_of(name) for name in location.files(f"{backup_id}/{chain.FOLDER}")]
    numbers = sorted([number for number in found if number is not None])
    for expected, number in enumerate(numbers):
        if number != expected:
            name = f"{location.shown}/{backup_id}/{chain.name_of(expected)}"
            raise DamagedBackup(name, 0, f"the file is missing, and increment {number} is there")
    return len(numbers)


class IncrementReader:
    """Reads an increment, block by block. For one thread at a time."""

    def __init__(self, location: Location, backup_id: str, number: int, key: BackupKey | None) -> None:
        """Open the file. Raises DamagedBackup, WrongKey."""
        self.number = number
        name = chain.name_of(number)
        self.shown = f"{location.shown}/{backup_id}/{name}"
        try:
            self._stream = location.open(f"{backup_id}/{name}")
        except NoBackup:
            raise DamagedBackup(self.shown, 0, "the file is missing") from None
        try:
            self._reader = Reader(self._stream, backup_id, name, key, self.shown)
        except BaseException:
            self._stream.close()
            raise
        self.salt = self._reader.salt
        """Unique for each file."""
        self.at = self._reader.at
        """Position of the block that was read last."""
        self.summary: Summary | None = None
        """Set once everything was read."""
        self.digest = b""
        """Digest of the summary."""

    def entries(self) -> Iterator[Entries]:
        """Yield all entries; then `summary` is set. Raises DamagedBackup."""
        with self._stream:
            for block in self._blocks():
                found = self._decoded(block)
                if isinstance(found, Entries):
                    yield found
                else:
                    self._take_summary(found, block)

    def read_summary(self) -> Summary:
        """Read the whole increment, and return its summary. Raises DamagedBackup."""
        with self._stream:
            for block in self._blocks():
                if chain.is_summary(block):
                    found = self._decoded(block)
                    assert isinstance(found, Summary)
                    self._take_summary(found, block)
        assert self.summary is not None
        return self.summary

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _blocks(self) -> Iterator[bytes]:
        while True:
            at = self._reader.at
            block = self._reader.next()
            if block is None:
                break
            self.at = at
            if self.summary is not None:
                raise self.wrong("there is data after its summary")
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
            raise self.wrong(f"it says that it is increment {found.number}, where {self.number} is expected")
        self.summary, self.digest = found, chain.digest_of(block)

    def wrong(self, why: str) -> DamagedBackup:
        """Return the error for the block that was read last."""
        return DamagedBackup(self.shown, self.at, why)


def read_summary(location: Location, backup_id: str, number: int, key: BackupKey | None) -> tuple[Summary, bytes]:
    """Read an increment; return its summary and the digest of the increment. Raises DamagedBackup, WrongKey."""
    reader = IncrementReader(location, backup_id, number, key)
    return reader.read_summary(), reader.digest


def is_stopped(location: Location, backup_id: str, number: int, key: BackupKey | None) -> bool:
    """Return whether an increment has no end: its writer was stopped, and the store shows incomplete files.

    Raises DamagedBackup, WrongKey.
    """
    try:
        read_summary(location, backup_id, number, key)
    except TruncatedBackup:
        return True
    return False


def salt_of(location: Location, backup_id: str, number: int, key: BackupKey | None) -> bytes:
    """Return the salt of an increment's file, which identifies it. Raises DamagedBackup, WrongKey."""
    reader = IncrementReader(location, backup_id, number, key)
    reader.close()
    return reader.salt


class IncrementWriter:
    """Writes an increment, which exists once its summary is written. For one thread at a time."""

    def __init__(self, location: Location, backup_id: str, number: int, key: BackupKey | None) -> None:
        self._context: AbstractContextManager[BinaryIO] | None = None
        self._shown = f"{location.shown}/{backup_id}/{chain.name_of(number)}"
        context = location.create(f"{backup_id}/{chain.name_of(number)}")
        stream = context.__enter__()
        self._context = context
        self._writer = Writer(stream, backup_id, chain.name_of(number), key)

    @property
    def salt(self) -> bytes:
        """Unique for each file."""
        return self._writer.salt

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._writer.bytes

    def write(self, block: bytes) -> None:
        """Add a block."""
        with failing(self._shown):
            self._writer.write(block)

    def end(self, summary: Summary) -> bytes:
        """Write the summary and complete the increment; return the digest of the summary."""
        block = summary.encode()
        with failing(self._shown):
            self._writer.write(block)
            self._writer.end()
        context, self._context = self._context, None
        assert context is not None
        context.__exit__(None, None, None)
        return chain.digest_of(block)

    def give_up(self) -> None:
        """Drop the incomplete file."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(NoBackup):
                context.__exit__(NoBackup, NoBackup("the increment was given up"), None)
