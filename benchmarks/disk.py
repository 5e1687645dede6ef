"""Refuse data directories in memory: their syncs are free, so their figures are worthless."""

from __future__ import annotations

from pathlib import Path

import click

IN_MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mountinfo")


class NoDisk(click.ClickException):
    """The directory is in memory; the text names it and says what to do."""


def check_disk(path: Path) -> None:
    """Raise NoDisk if data written there never reaches a disk."""
    found = filesystem_of_directory(path)
    if found in IN_MEMORY:
        raise NoDisk(
            f"{path} is on {found}, in memory: a sync costs nothing there, and the figures would be worth nothing. "
            "Name a directory on the disk that is to be measured with --dir."
        )


def filesystem_of_directory(path: Path) -> str:
    """Return the type of the file system of a directory."""
    return filesystem_of(path.resolve(), _MOUNTS.read_text())


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the type of the file system of an absolute path, from the text of /proc/self/mountinfo."""
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # If several file systems are mounted at one path, the last one hides the others.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), after.split()[0]
    return found
