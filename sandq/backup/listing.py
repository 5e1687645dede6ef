"""List the backups in a location, and select the backups that may be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sandq.backup import chain, increments
from sandq.backup import manifest as manifests
from sandq.backup.errors import DamagedBackup, NoBackup, WrongKey
from sandq.backup.follow import topics_at
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest
from sandq.backup.work import in_thread


@dataclass(frozen=True, slots=True)
class Listed:
    """A backup in a list, whether usable or not."""

    backup_id: str
    manifest: Manifest | None
    """None if it cannot be used."""
    problem: str | None = None
    """The reason why it cannot be used."""
    is_unfinished: bool = False
    """True if it was never finished, or is being made."""
    increments: int = 0
    spans: Sequence[tuple[int, int]] = ()
    """Time spans, in epoch milliseconds, for which the whole backup can be restored with its increments."""

    @property
    def reach_ms(self) -> int | None:
        """Time up to which the whole backup can be restored; None without increments."""
        return self.spans[-1][1] if self.spans else None

    def shown(self) -> dict[str, Any]:
        """Return the backup and its state as JSON."""
        if self.manifest is not None:
            chain_fields = {
                "increments": self.increments,
                "reach_ms": self.reach_ms,
                "spans": [list(one) for one in self.spans],
            }
            return {**self.manifest.shown(), **chain_fields, "problem": self.problem}
        return {"backup_id": self.backup_id, "problem": self.problem}


async def list_backups(location: Location, *, key: BackupKey | None = None) -> list[Listed]:
    """Return all backups in a location, oldest first, including unusable ones with the reason."""
    found = []
    for folder in await in_thread(location.folders, location.shown):
        try:
            manifests.check_id(folder)
        except NoBackup:
            continue
        found.append(await in_thread(partial(_read, location, folder, key), location.shown))
    return found


def _read(location: Location, folder: str, key: BackupKey | None) -> Listed:
    if not location.exists(f"{folder}/{manifests.MANIFEST}"):
        return Listed(folder, None, "it was not finished, or is being made", is_unfinished=True)
    try:
        manifest = manifests.read(location, folder, key)
    except (DamagedBackup, WrongKey, NoBackup) as error:
        return Listed(folder, None, error.message)
    there = 0
    try:
        there = increments.count(location, folder)
        if not there:
            return Listed(folder, manifest)
        last, _ = increments.read_summary(location, folder, there - 1, key)
        spans = chain.spans(topics_at(location, manifest, last, key), last.windows)
        return Listed(folder, manifest, increments=there, spans=spans)
    except (DamagedBackup, WrongKey, NoBackup) as error:
        return Listed(folder, manifest, f"its increments: {error.message}", increments=there)


async def delete_backup(location: Location, backup_id: str) -> None:
    """Delete a backup with all its files, finished or not. Raises NoBackup.

    The manifest is deleted first, so that a partially deleted backup is not used.
    """
    manifests.check_id(backup_id)
    if backup_id not in await in_thread(location.folders, location.shown):
        raise NoBackup(f"there is no backup {backup_id!r} in {location.shown}")
    await in_thread(partial(location.remove, backup_id, manifests.MANIFEST), location.shown)


def outlived(backups: Sequence[Listed], keep: int, last: Manifest) -> list[Listed]:
    """Return the backups that are older than the last `keep` good ones of the cluster and topics of `last`.

    `last` was made just now. A backup that began later than `last` was made while the clock was wrong, and is deleted
    first. Never returned: the last `keep` good ones, backups of other clusters or topics, and unreadable ones, which a
    person should check.
    """
    good = [
        (one.manifest.begun_ms <= last.begun_ms, one.manifest.begun_ms, one)
        for one in backups
        if one.manifest is not None and (one.manifest.cluster_uuid, one.manifest.only) == (last.cluster_uuid, last.only)
    ]
    return [one for *_, one in sorted(good, key=lambda row: row[:2])[:-keep]] if keep > 0 else []
