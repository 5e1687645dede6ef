"""Make backups at intervals, keep the last ones, and write the status to a file."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from sandq.backup import manifest as manifests
from sandq.backup.chains import RETRY_S as RETRY_INCREMENT_S
from sandq.backup.chains import ChainKeeper
from sandq.backup.create import create_backup
from sandq.backup.follow import BackupFollower
from sandq.backup.keys import BackupKey
from sandq.backup.listing import Listed, delete_backup, list_backups, outlived
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest
from sandq.backup.standing import Standing, StatusFile, Tell
from sandq.client import Client
from sandq.client.backups import BackupTransfer
from sandq.model.errors import Conflict, InvalidRequest, NotFound, SandqError

T = TypeVar("T")

RETRY_S: Final = 300.0
"""Maximum pause after a failed backup, in seconds."""
FINISH_ATTEMPTS: Final = 3
"""Maximum number of attempts for the last increment of a backup, after the next backup was made."""
UNFINISHED_MS: Final = 86_400_000
"""An unfinished backup that is older than this (in ms) was abandoned."""


class BackupSchedule:
    """Makes a backup every `every_s` seconds, counted from the last good one, and keeps the last `keep` backups."""

    def __init__(
        self,
        client: Client,
        location: Location,
        every_s: float,
        keep: int,
        *,
        topics: Collection[str] | None = None,
        identities: bool = False,
        key: BackupKey | None = None,
        rate: int | None = None,
        increments_s: float | None = None,
        status: Path | None = None,
        tell: Tell = lambda event, fields: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`increments_s`: make an increment this often, in seconds, between backups. Raises InvalidRequest."""
        if every_s < 1:
            raise InvalidRequest("backups are made every second at most")
        if increments_s is not None and not 1 <= increments_s <= every_s:
            raise InvalidRequest("increments are made every second at most, and more often than backups")
        if keep < 1:
            raise InvalidRequest("at least one backup is kept")
        self.standing = Standing()
        self._client = client
        self._location = location
        self._every_s = every_s
        self._keep = keep
        self._topics = topics
        self._only = None if topics is None else tuple(sorted(topics))
        """Value of `Manifest.only` in its backups. The same location may also have backups of other topics."""
        self._identities = identities
        self._key = key
        self._rate = rate
        self._increments_s = increments_s
        self._status = None if status is None else StatusFile(status)
        self._tell = tell
        self._now_ms = now_ms
        self._last: Manifest | None = None
        """The backup that is followed."""

    async def run(self, times: int | None = None) -> None:
        """Run until cancelled, or until `times` backups were made. A failed backup is reported and retried."""
        made = 0
        await self._read_existing()
        while times is None or made < times:
            await self._write_status()
            wait = partial(anyio.sleep, max(0.0, (self.standing.next_ms - self._now_ms()) / 1000))
            await self._following(wait)
            before = self._keeper()
            if await self._following(self.once):
                made += 1
                if before is not None:
                    await self._finish(before)
        await self._write_status()

    def _keeper(self) -> ChainKeeper | None:
        """Return a keeper that follows the last backup, or None."""
        if self._increments_s is None or self._last is None:
            return None
        follower = BackupFollower(self._client, self._location, self._last, key=self._key, rate=self._rate)
        options = {"status": self._status, "tell": self._tell, "now_ms": self._now_ms}
        return ChainKeeper(follower, self._increments_s, self.standing, **options)  # type: ignore[arg-type]

    async def _following(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, and follow the last backup meanwhile."""
        keeper = self._keeper()
        if keeper is None:
            return await work()
        found: list[T] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, keeper)
            found.append(await work())
            keeper.stop()
        return found[0]

    async def _follow(self, keeper: ChainKeeper) -> None:
        while True:
            try:
                await keeper.run()
                return
            except (NotFound, Conflict) as error:
                followed = keeper.follower.manifest.backup_id
                is_gone = isinstance(error, NotFound)
                if is_gone and self._last is not None and self._last.backup_id != followed:
                    return  # there is a newer backup, and the followed one was deleted
                self.standing.increment_failures += 1
                self.standing.increment_error = str(error)
                if is_gone:
                    self._last = None
                    self._tell("backup is followed no more", {"error": str(error)})
                else:
                    # Another process may follow it at present; retry later.
                    self._tell("increment failed", {"error": str(error), "failures": self.standing.increment_failures})
                await self._write_status()
                if is_gone:
                    return
            await keeper.pause(RETRY_INCREMENT_S)

    async def _finish(self, keeper: ChainKeeper) -> None:
        """Follow the former backup up to the end of the new one, so that there is no gap between them."""
        for _ in range(FINISH_ATTEMPTS):
            try:
                if await keeper.once() is not None:
                    return
            except NotFound:
                return
            except Conflict as error:
                self._tell("increment failed", {"error": str(error)})
            await anyio.sleep(RETRY_INCREMENT_S)

    async def _read_existing(self) -> None:
        """Compute from the existing backups when the next backup is due."""
        listed = await list_backups(self._location, key=self._key)
        now_ms, cluster_uuid = self._now_ms(), await self._cluster()
        good = [
            one.manifest
            for one in listed
            if one.manifest is not None
            and cluster_uuid in (None, one.manifest.cluster_uuid)
            and one.manifest.only == self._only
        ]
        self.standing.backups = len(good)
        self.standing.next_ms = now_ms
        # Ignore backups that begin in the future: they were made while the clock was wrong.
        if good := [one for one in good if one.begun_ms <= now_ms]:
            last = good[-1]
            self.standing.last_backup, self.standing.last_success_ms = last.backup_id, last.ended_ms
            self.standing.last_bytes = last.bytes
            self._last = last
            self.standing.next_ms = last.begun_ms + int(self._every_s * 1000)

    async def _cluster(self) -> str | None:
        """Return the UUID of the cluster; None if it cannot be reached.

        It distinguishes the cluster's own backups from those of other clusters in the same location.
        """
        with suppress(SandqError, OSError):
            found = await BackupTransfer(self._client).catalog()
            return str(found["cluster_uuid"])
        return None

    async def once(self) -> bool:
        """Make a backup, then delete surplus ones; return whether it was made."""
        standing, began_ms = self.standing, self._now_ms()
        before = {one.backup_id for one in await self._listed()}
        try:
            manifest = await create_backup(
                self._client,
                self._location,
                topics=self._topics,
                identities=self._identities,
                key=self._key,
                rate=self._rate,
                follow=self._increments_s is not None,
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
        self._last = manifest
        standing.next_ms = began_ms + int(self._every_s * 1000)
        fields = {"backup": manifest.backup_id, "bytes": manifest.bytes, "partitions": len(manifest.parts)}
        self._tell("backup made", {**fields, "warnings": list(manifest.warnings)})
        await self._prune(manifest)
        return True

    async def _listed(self) -> list[Listed]:
        with suppress(SandqError, OSError):
            return await list_backups(self._location, key=self._key)
        return []

    async def _clean(self, before: Collection[str]) -> None:
        """Delete the incomplete backup of a failed attempt; the next attempt starts from the beginning."""
        for one in await self._listed():
            if one.is_unfinished and one.backup_id not in before:
                with suppress(SandqError, OSError):
                    await delete_backup(self._location, one.backup_id)

    async def _prune(self, last: Manifest) -> None:
        """Delete backups that need not be kept. `last`: the backup that was just made; it is never deleted."""
        try:
            there = await list_backups(self._location, key=self._key)
            oldest = manifests.new_id(self._now_ms() - UNFINISHED_MS)
            stale = [one for one in there if one.is_unfinished and one.backup_id < oldest]
            going = outlived(there, self._keep, last)
            for one in [*going, *stale]:
                try:
                    await delete_backup(self._location, one.backup_id)
                except Conflict:
                    continue  # another process has been making it for long
                self._tell("backup deleted", {"backup": one.backup_id, "finished": not one.is_unfinished})
            mine = last.cluster_uuid, last.only
            own = [one for one in there if one.manifest and (one.manifest.cluster_uuid, one.manifest.only) == mine]
            self.standing.backups = len(own) - len(going)
        except (SandqError, OSError) as error:
            self._tell("backups could not be deleted", {"error": str(error)})

    async def _write_status(self) -> None:
        if self._status is not None:
            await self._status.write(self.standing, self._tell)
