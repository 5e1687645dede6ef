"""Make backups at intervals, keep the last of them, and say in a file how that goes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import anyio

from sandq.backup import manifest as manifests
from sandq.backup.create import create_backup
from sandq.backup.keys import BackupKey
from sandq.backup.listing import Listed, delete_backup, list_backups, outlived
from sandq.backup.manifest import Manifest
from sandq.backup.places import Place
from sandq.backup.work import in_thread
from sandq.client import Client
from sandq.client.backups import BackupTransfer
from sandq.model.errors import Conflict, InvalidRequest, SandqError

RETRY_S: Final = 300.0
"""After one that failed, at most."""
UNFINISHED_MS: Final = 86_400_000
"""One that was never finished, and is older than that, is nobody's any more."""
PROMETHEUS: Final = ".prom"
"""A status file of this name is for the textfile collector of Prometheus' node exporter."""

Tell = Callable[[str, dict[str, object]], None]
"""Told of what was done: `event` and its fields."""


@dataclass(slots=True)
class Standing:
    """How it goes. Times in epoch milliseconds."""

    backups: int = 0
    """Good ones that there are."""
    last_backup: str | None = None
    last_success_ms: int | None = None
    last_bytes: int = 0
    last_seconds: float = 0.0
    failures: int = 0
    """In a row."""
    error: str | None = None
    """Of the last one, if it failed."""
    next_ms: int = 0


class BackupSchedule:
    """Makes a backup every `every_s`, counted from the last good one that there is, and keeps the last `keep`."""

    def __init__(
        self,
        client: Client,
        place: Place,
        every_s: float,
        keep: int,
        *,
        topics: Collection[str] | None = None,
        identities: bool = False,
        key: BackupKey | None = None,
        rate: int | None = None,
        status: Path | None = None,
        tell: Tell = lambda event, fields: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Raises InvalidRequest."""
        if every_s < 1:
            raise InvalidRequest("backups are made every second at most")
        if keep < 1:
            raise InvalidRequest("at least one backup is kept")
        self.standing = Standing()
        self._client = client
        self._place = place
        self._every_s = every_s
        self._keep = keep
        self._topics = topics
        self._identities = identities
        self._key = key
        self._rate = rate
        self._status = status
        self._tell = tell
        self._now_ms = now_ms

    async def run(self, times: int | None = None) -> None:
        """Go on until it is cancelled, or so many were made. One that fails is told of, and tried again."""
        made = 0
        await self._look()
        while times is None or made < times:
            await self._write_status()
            await anyio.sleep(max(0.0, (self.standing.next_ms - self._now_ms()) / 1000))
            if await self.once():
                made += 1
        await self._write_status()

    async def _look(self) -> None:
        """What there is says when the next one is due."""
        listed = await list_backups(self._place, key=self._key)
        now_ms, cluster_uuid = self._now_ms(), await self._cluster()
        good = [
            one.manifest
            for one in listed
            if one.manifest is not None and cluster_uuid in (None, one.manifest.cluster_uuid)
        ]
        self.standing.backups = len(good)
        self.standing.next_ms = now_ms
        # One that is not begun yet was made while the clock was wrong: it says nothing of when the next one is due.
        if good := [one for one in good if one.begun_ms <= now_ms]:
            last = good[-1]
            self.standing.last_backup, self.standing.last_success_ms = last.backup_id, last.ended_ms
            self.standing.last_bytes = last.bytes
            self.standing.next_ms = last.begun_ms + int(self._every_s * 1000)

    async def _cluster(self) -> str | None:
        """Whose backups these are: others may be at the same place. None: it cannot be reached."""
        with suppress(SandqError, OSError):
            found = await BackupTransfer(self._client).catalog()
            return str(found["cluster_uuid"])
        return None

    async def once(self) -> bool:
        """Make one, then let those go that are too many. Whether it was made."""
        standing, began_ms = self.standing, self._now_ms()
        before = {one.backup_id for one in await self._listed()}
        try:
            manifest = await create_backup(
                self._client,
                self._place,
                topics=self._topics,
                identities=self._identities,
                key=self._key,
                rate=self._rate,
            )
        except (SandqError, OSError) as error:
            standing.failures += 1
            standing.error = str(error)
            standing.next_ms = self._now_ms() + int(min(self._every_s, RETRY_S) * 1000)
            self._tell("backup failed", {"error": standing.error, "failures": standing.failures})
            await self._clean(before)
            return False
        standing.last_backup, standing.last_success_ms = manifest.backup_id, manifest.ended_ms
        standing.last_bytes, standing.last_seconds = manifest.bytes, (self._now_ms() - began_ms) / 1000
        standing.failures, standing.error = 0, None
        standing.next_ms = began_ms + int(self._every_s * 1000)
        told = {"backup": manifest.backup_id, "bytes": manifest.bytes, "partitions": len(manifest.parts)}
        self._tell("backup made", {**told, "warnings": list(manifest.warnings)})
        await self._prune(manifest)
        return True

    async def _listed(self) -> list[Listed]:
        with suppress(SandqError, OSError):
            return await list_backups(self._place, key=self._key)
        return []

    async def _clean(self, before: Collection[str]) -> None:
        """What this one has left behind that failed goes: it begins anew."""
        for one in await self._listed():
            if one.is_unfinished and one.backup_id not in before:
                with suppress(SandqError, OSError):
                    await delete_backup(self._place, one.backup_id)

    async def _prune(self, last: Manifest) -> None:
        """Delete what is older than those that are kept; never the one that was made last."""
        try:
            there = await list_backups(self._place, key=self._key)
            oldest = manifests.new_id(self._now_ms() - UNFINISHED_MS)
            stale = [one for one in there if one.is_unfinished and one.backup_id < oldest]
            going = outlived(there, self._keep, last)
            for one in [*going, *stale]:
                try:
                    await delete_backup(self._place, one.backup_id)
                except Conflict:
                    continue  # somebody makes it, for long
                self._tell("backup deleted", {"backup": one.backup_id, "finished": not one.is_unfinished})
            own = [one for one in there if one.manifest is not None and one.manifest.cluster_uuid == last.cluster_uuid]
            self.standing.backups = len(own) - len(going)
        except (SandqError, OSError) as error:
            self._tell("backups could not be deleted", {"error": str(error)})

    async def _write_status(self) -> None:
        if self._status is not None:
            path, text = self._status, status_text(self.standing, self._status.suffix == PROMETHEUS)
            await in_thread(lambda: _replace(path, text), str(path))


def status_text(standing: Standing, for_prometheus: bool) -> str:
    """Return what stands in the status file."""
    if not for_prometheus:
        return json.dumps(asdict(standing), indent=2) + "\n"
    success_s = (standing.last_success_ms or 0) / 1000
    rows = (
        ("sandq_backup_last_success_timestamp_seconds", "When the last good backup was made; 0: never.", success_s),
        ("sandq_backup_last_bytes", "Bytes of its files.", standing.last_bytes),
        ("sandq_backup_last_duration_seconds", "How long it took.", standing.last_seconds),
        ("sandq_backup_kept", "Good backups that there are.", standing.backups),
        ("sandq_backup_failures", "Backups that failed since the last good one.", standing.failures),
    )
    return "".join([f"# HELP {name} {what}\n# TYPE {name} gauge\n{name} {value}\n" for name, what, value in rows])


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
