"""Keep a backup up to date with increments at short intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import anyio

from sandq.backup.create import create_backup
from sandq.backup.follow import BackupFollower, Increment
from sandq.backup.keys import BackupKey
from sandq.backup.listing import list_backups
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest
from sandq.backup.pins import AGAIN_S
from sandq.backup.standing import Standing, StatusFile, Tell
from sandq.backup.work import OnProgress
from sandq.client import Client
from sandq.client.backups import BackupTransfer
from sandq.model.errors import Conflict, InvalidRequest, NotFound, SandqError

RETRY_S: Final = 5.0
"""Pause after a failed increment, in seconds; at most the interval of increments."""
USED_SHARE: Final = 0.25
"""If more than this share of the nodes' log space for a reader is used, the next increment is made earlier."""


async def last_of_cluster(
    client: Client, location: Location, key: BackupKey | None, topics: Collection[str] | None = None
) -> Manifest | None:
    """Return the last good backup of the client's cluster in a location, of exactly these topics (None: all topics).
    Return None if there is none."""
    cluster_uuid = (await BackupTransfer(client).catalog())["cluster_uuid"]
    there = [one.manifest for one in await list_backups(location, key=key) if one.manifest is not None]
    only = None if topics is None else tuple(sorted(topics))
    own = [manifest for manifest in there if (manifest.cluster_uuid, manifest.only) == (cluster_uuid, only)]
    return max(own, key=lambda manifest: manifest.begun_ms, default=None)


async def create_increment(
    client: Client,
    location: Location,
    *,
    key: BackupKey | None = None,
    rate: int | None = None,
    topics: Collection[str] | None = None,
    identities: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> tuple[Manifest, Increment]:
    """Add an increment to the last backup of this cluster in a location, of these topics (None: all topics).

    If there is no backup, it is created, too. Raises the errors of `create_backup` and `BackupFollower.step`.
    """
    manifest = await last_of_cluster(client, location, key, topics)
    if manifest is None:
        manifest = await create_backup(
            client,
            location,
            key=key,
            rate=rate,
            topics=topics,
            identities=identities,
            follow=True,
            on_progress=on_progress,
        )
    follower = BackupFollower(client, location, manifest, key=key, rate=rate, on_progress=on_progress)
    return manifest, await follower.step(always=True)


class ChainKeeper:
    """Makes an increment every `every_s` seconds, and records the results in `standing`."""

    def __init__(
        self,
        follower: BackupFollower,
        every_s: float,
        standing: Standing,
        *,
        status: StatusFile | None = None,
        tell: Tell = lambda event, fields: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Check the interval. Raises InvalidRequest."""
        if every_s < 1:
            raise InvalidRequest("increments are made every second at most")
        self.follower = follower
        self._every_s = every_s
        self._standing = standing
        self._status = status
        self._tell = tell
        self._now_ms = now_ms
        self._is_over = anyio.Event()

    def stop(self) -> None:
        """Let `run` end after the current increment."""
        self._is_over.set()

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until `stop`."""
        with anyio.move_on_after(seconds):
            await self._is_over.wait()

    async def run(self, times: int | None = None) -> None:
        """Run until `stop`, or until `times` increments were made, counting increments that found nothing new.

        A failed increment is reported and retried. Raises NotFound or Conflict if the backup is gone, belongs to
        another cluster, or is followed by another process.
        """
        made = 0
        while not self._is_over.is_set() and (times is None or made < times):
            began_ms = self._now_ms()
            increment = await self.once()
            made += increment is not None
            if times is not None and made >= times:
                return
            await self._wait(max(0.0, self._wait_s(increment) - (self._now_ms() - began_ms) / 1000))

    async def _wait(self, seconds: float) -> None:
        """Wait until the next increment is due, keeping the nodes' logs pinned; return early if their space gets
        scarce."""
        until_s = anyio.current_time() + seconds
        while (left_s := until_s - anyio.current_time()) > 0 and not self._is_over.is_set():
            await self.pause(min(left_s, AGAIN_S))
            if left_s > AGAIN_S and not self._is_over.is_set() and await self.follower.keep() > USED_SHARE:
                return

    def _wait_s(self, increment: Increment | None) -> float:
        if increment is None:
            return min(self._every_s, RETRY_S)
        # If entries are written so fast that the nodes' log space would not suffice, read them earlier.
        return self._every_s if increment.fullest <= USED_SHARE else self._every_s * USED_SHARE / increment.fullest

    async def once(self) -> Increment | None:
        """Make one increment; return None if it failed. Raises the errors of `run`."""
        standing = self._standing
        # Set before the first increment, too, so that the status shows a chain whose first increment fails.
        standing.chain = self.follower.manifest.backup_id
        try:
            increment = await self.follower.step()
        except (NotFound, Conflict):
            raise
        except (SandqError, OSError) as error:
            if (reach_ms := self.follower.reach_ms) is not None:
                standing.reach_ms = reach_ms
            standing.increment_failures += 1
            standing.increment_error = str(error)
            self._tell("increment failed", {"error": str(error), "failures": standing.increment_failures})
            await self._write()
            return None
        standing.increment_failures, standing.increment_error = 0, None
        standing.reach_ms = increment.reach_ms
        standing.increments += increment.number is not None
        standing.increment_bytes += increment.bytes
        standing.gone += len(increment.gone)
        standing.partitions_behind = len(increment.errors)
        if increment.number is not None:
            fields: dict[str, object] = {
                "backup": increment.backup_id,
                "increment": increment.number,
                "entries": increment.entries,
                "bytes": increment.bytes,
                "gone": list(increment.gone),
                "errors": list(increment.errors),
                "left": list(increment.left),
            }
            self._tell("increment made", fields)
        await self._write()
        return increment

    async def _write(self) -> None:
        if self._status is not None:
            await self._status.write(self._standing, self._tell)
