"""Run backups and restores for HTTP: one of each at a time, at the location in the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.abc

from sandq.backup import (
    BackupKey,
    Progress,
    create_backup,
    increments,
    list_backups,
    open_location,
    restore_backup,
    verify_chain,
)
from sandq.backup import manifest as manifests
from sandq.backup.locations import Location
from sandq.backup.work import in_thread
from sandq.client import Client
from sandq.model.config_backup import BackupSection
from sandq.model.errors import Conflict, SandqError
from sandq.model.logger import get_logger

log = get_logger("sandq.http")


@dataclass(frozen=True, slots=True)
class BackupTarget:
    """The location and options of backups, from the configuration."""

    url: str
    key_file: Path | None = None
    identities: bool = False


def target_of(backup: BackupSection) -> BackupTarget | None:
    """Return the target of backups in a section of the configuration; None if it names none."""
    return None if backup.url is None else BackupTarget(backup.url, backup.key_file, backup.identities)


class HttpBackups:
    """The backups and restores of one HTTP server."""

    def __init__(self, client: Client, target: BackupTarget | None, tasks: anyio.abc.TaskGroup) -> None:
        """`target`: None if backups are off. `tasks`: lives as long as the server."""
        self._client = client
        self._target = target
        self._tasks = tasks
        self._running: Progress | None = None
        self._last: dict[str, Any] | None = None
        """Outcome of the last backup that this server made."""
        self._restoring: Progress | None = None
        self._last_restore: dict[str, Any] | None = None

    async def begin(self, topics: Sequence[str] | None) -> dict[str, Any]:
        """Start a backup, and return its progress. Raise Conflict if one is running here, or ConfigError."""
        if self._running is not None:
            raise Conflict("a backup is running here already: wait until it is done")
        progress = self._running = Progress()
        try:
            location, key = await self._opened()
        except BaseException:
            self._running = None
            raise
        self._tasks.start_soon(self._make, location, key, topics, progress)
        return _shown(progress)

    async def _make(
        self, location: Location, key: BackupKey | None, topics: Sequence[str] | None, own: Progress
    ) -> None:
        """Make a backup, and note its outcome."""

        def update_progress(progress: Progress) -> None:
            self._running = progress

        try:
            manifest = await create_backup(
                self._client,
                location,
                topics=topics,
                identities=self._target is not None and self._target.identities,
                key=key,
                on_progress=update_progress,
            )
            self._last = {"backup_id": manifest.backup_id, "error": None}
        except Exception as error:  # a failure must not end the server
            log.warning("a backup failed", exc_info=not isinstance(error, SandqError), error=str(error))
            self._last = {"backup_id": None, "error": str(error)}
        finally:
            self._running = None

    async def begin_restore(
        self,
        backup_id: str,
        *,
        topics: Sequence[str] | None,
        names: Mapping[str, str],
        prefix: str,
        base: bool,
        resume_groups: bool,
    ) -> dict[str, Any]:
        """Start to restore topics from a backup, and return its progress.

        Raise NoBackup, DamagedBackup, WrongKey or ConfigError. Raise Conflict if a restore is running here, or if the
        backup has increments and `base` is not set. Increments are not replayed here, because that uses much CPU and
        memory."""
        if self._restoring is not None:
            raise Conflict("a restore is running here already: wait until it is done")
        progress = self._restoring = Progress()
        try:
            location, key = await self._opened()
            await in_thread(partial(manifests.read, location, backup_id, key), location.shown)
            behind = await in_thread(partial(increments.count, location, backup_id), location.shown)
            if behind and not base:
                raise Conflict(
                    f"backup {backup_id} has increments: restore its latest state with `sandctl backup restore`, which "
                    "replays them, or set `base` to restore the state of the backup itself"
                )
        except BaseException:
            self._restoring = None
            raise

        def update_progress(progress: Progress) -> None:
            self._restoring = progress

        async def restore() -> None:
            """Restore the topics, and note the outcome."""
            try:
                done = await restore_backup(
                    self._client,
                    location,
                    backup_id,
                    topics=topics,
                    names=names,
                    prefix=prefix,
                    resume_groups=resume_groups,
                    with_increments=False,
                    key=key,
                    on_progress=update_progress,
                )
                last = {"topics": dict(done.topics), "warnings": list(done.warnings), "error": None}
                self._last_restore = {"backup_id": backup_id, **last}
            except Exception as error:  # a failure must not end the server
                log.warning("a restore failed", exc_info=not isinstance(error, SandqError), error=str(error))
                self._last_restore = {"backup_id": backup_id, "topics": {}, "warnings": [], "error": str(error)}
            finally:
                self._restoring = None

        self._tasks.start_soon(restore)
        return _shown(progress)

    async def list(self) -> dict[str, Any]:
        """Return all backups, and the progress of the backup and the restore that run here."""
        location, key = await self._opened()
        found = await list_backups(location, key=key)
        running = None if self._running is None else _shown(self._running)
        restoring = None if self._restoring is None else _shown(self._restoring)
        making = {"running": running, "last": self._last}
        return {
            "backups": [one.shown() for one in found],
            **making,
            "restoring": restoring,
            "last_restore": self._last_restore,
        }

    async def verify(self, backup_id: str) -> dict[str, Any]:
        """Read a whole backup and check it. Raise NoBackup, DamagedBackup or WrongKey."""
        location, key = await self._opened()
        return (await verify_chain(location, backup_id, key=key)).shown()

    async def _opened(self) -> tuple[Location, BackupKey | None]:
        """Return the location of backups, and the key. Raise Conflict if backups are off, or ConfigError."""
        target = self._target
        if target is None:
            raise Conflict("backups over HTTP are off: the configuration of this node names no location (backup.url)")
        key = None if target.key_file is None else await in_thread(partial(BackupKey.read, target.key_file), "the key")
        return await in_thread(partial(open_location, target.url), "the location of backups"), key


def _shown(progress: Progress) -> dict[str, Any]:
    """Return progress as a JSON object."""
    return {
        "partitions": progress.partitions,
        "partitions_done": progress.partitions_done,
        "bytes": max(progress.bytes, progress.bytes_done),
        "bytes_done": progress.bytes_done,
    }
