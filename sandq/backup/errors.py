"""Errors of backups."""

from __future__ import annotations

from sandq.model.errors import InvalidRequest, NotFound


class DamagedBackup(InvalidRequest):
    """A file of a backup is damaged; the error has the file and the byte."""

    def __init__(self, file: str, at: int, why: str) -> None:
        super().__init__(f"{file}, byte {at}: {why}", file=file, byte=at)
        self.at = at
        self.why = why


class TruncatedBackup(DamagedBackup):
    """A file ends too early: its writer was stopped, and the store shows incomplete files."""


class WrongKey(InvalidRequest):
    """The key does not fit: the backup has a different key or none, or no key was given."""


class NoBackup(NotFound):
    """The backup does not exist, or it was never finished."""
