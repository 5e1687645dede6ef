"""Which backups there are at a place, and which of them may go."""

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
from sandq.backup.manifest import Manifest
from sandq.backup.places import Place
from sandq.backup.work import in_thread


@dataclass(frozen=True, slots=True)
class Listed:
    """A backup, or what is in its place."""

    backup_id: str
    manifest: Manifest | None
    """None: it cannot be used."""
    problem: str | None = None
    """Why not."""
    is_unfinished: bool = False
    """It was never finished; it may be in the making."""
    increments: int = 0
    spans: Sequence[tuple[int, int]] = ()
    """Stretches of time, in epoch milliseconds, at each moment of which all of it can be had, by its increments."""

    @property
    def reach_ms(self) -> int | None:
        """Up to when all of it can be had; None: there are no increments."""
        return self.spans[-1][1] if self.spans else None

    def shown(self) -> dict[str, Any]:
        """Return what is told of it."""
        if self.manifest is not None:
            behind = {
                "increments": self.increments,
                "reach_ms": self.reach_ms,
                "spans": [list(one) for one in self.spans],
            }
            return {**self.manifest.shown(), **behind, "problem": self.problem}
        return {"backup_id": self.backup_id, "problem": self.problem}


async def list_backups(place: Place, *, key: BackupKey | None = None) -> list[Listed]:
    """All backups at a place, the oldest first; also those that cannot be used, and why."""
    found = []
    for folder in await in_thread(place.folders, place.shown):
        try:
            manifests.check_id(folder)
        except NoBackup:
            continue
        found.append(await in_thread(partial(_look, place, folder, key), place.shown))
    return found


def _look(place: Place, folder: str, key: BackupKey | None) -> Listed:
    if not place.exists(f"{folder}/{manifests.MANIFEST}"):
        return Listed(folder, None, "it was not finished, or is being made", is_unfinished=True)
    try:
        manifest = manifests.read(place, folder, key)
    except (DamagedBackup, WrongKey, NoBackup) as error:
        return Listed(folder, None, error.message)
    there = 0
    try:
        there = increments.count(place, folder)
        if not there:
            return Listed(folder, manifest)
        last, _ = increments.read_summary(place, folder, there - 1, key)
        spans = chain.spans(topics_at(place, manifest, last, key), last.windows)
        return Listed(folder, manifest, increments=there, spans=spans)
    except (DamagedBackup, WrongKey, NoBackup) as error:
        return Listed(folder, manifest, f"its increments: {error.message}", increments=there)


async def delete_backup(place: Place, backup_id: str) -> None:
    """Delete a backup and all of its files, also one that was not finished; its manifest first, so that one that is
    deleted by half is none. Raises NoBackup."""
    manifests.check_id(backup_id)
    if backup_id not in await in_thread(place.folders, place.shown):
        raise NoBackup(f"there is no backup {backup_id!r} in {place.shown}")
    await in_thread(partial(place.remove, backup_id, manifests.MANIFEST), place.shown)


def outlived(backups: Sequence[Listed], keep: int, last: Manifest) -> list[Listed]:
    """Those that are older than the last `keep` good ones of the cluster of `last`, which was made just now and is the
    last of all: one that says that it was begun after it was made while the clock was wrong, and goes first. Never one
    that is good while there are no more than that, of another cluster or other topics, or that cannot be read: somebody
    is to look at it."""
    good = [
        (one.manifest.begun_ms <= last.begun_ms, one.manifest.begun_ms, one)
        for one in backups
        if one.manifest is not None and (one.manifest.cluster_uuid, one.manifest.only) == (last.cluster_uuid, last.only)
    ]
    return [one for *_, one in sorted(good, key=lambda row: row[:2])[:-keep]] if keep > 0 else []
