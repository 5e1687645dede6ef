"""Figures of a data directory that is in memory are worth nothing: its syncs are free."""

from __future__ import annotations

from pathlib import Path

import click

IN_MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mountinfo")


class NoDisk(click.ClickException):
    """The directory is in memory; the text says which, and what to do."""


def check_disk(path: Path) -> None:
    """NoDisk when what is written there never reaches a disk."""
    found = filesystem_of_directory(path)
    if found in IN_MEMORY:
        raise NoDisk(
            f"{path} is on {found}, in memory: a sync costs nothing there, and the figures would be worth nothing. "
            "Name a directory on the disk that is to be measured with --dir."
        )


def filesystem_of_directory(path: Path) -> str:
    """The type of the file system that a directory is on."""
    return filesystem_of(path.resolve(), _MOUNTS.read_text())


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that an absolute path is on, by the text of /proc/self/mountinfo."""
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # Of several mounts on one place the last one hides the others.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), after.split()[0]
    return found
