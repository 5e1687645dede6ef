"""What may be wrong with a backup."""

from __future__ import annotations

from sandq.model.errors import InvalidRequest, NotFound


class DamagedBackup(InvalidRequest):
    """A file of a backup is not what was written: it says which file, and at which byte."""

    def __init__(self, file: str, at: int, why: str) -> None:
        super().__init__(f"{file}, byte {at}: {why}", file=file, byte=at)
        self.at = at
        self.why = why


class TruncatedBackup(DamagedBackup):
    """A file ends before what was written of it: whoever wrote it was stopped, where a store shows such files."""


class WrongKey(InvalidRequest):
    """A backup is encrypted with another key, or not at all, or none was given for it."""


class NoBackup(NotFound):
    """There is no such backup, or it was never finished."""
