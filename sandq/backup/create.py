"""Create a backup: the rows of each partition at one moment, and then the manifest."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import anyio

from sandq.backup import manifest as manifests
from sandq.backup.errors import DamagedBackup, NoBackup
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.backup.manifest import FULL, Manifest, PartitionPart, TopicPart
from sandq.backup.pins import with_pins
from sandq.backup.row_files import RowFiles, copy_rows
from sandq.backup.work import AT_ONCE, OnProgress, Pace, Progress, in_thread, several
from sandq.client import Client
from sandq.client.backups import BackupTransfer
from sandq.model.errors import NotFound, Unavailable, UnknownTopic
from sandq.model.names import RESTORING

ATTEMPTS: Final = 8
"""Maximum number of attempts for a partition whose leader changes."""
PAUSE_S: Final = 1.0
DONE: Final = "done.sandq"
"""Marker file of a partition whose files are complete; used until the manifest exists."""


async def create_backup(
    client: Client,
    location: Location,
    *,
    topics: Collection[str] | None = None,
    identities: bool = False,
    key: BackupKey | None = None,
    resume: str | None = None,
    rate: int | None = None,
    at_once: int = AT_ONCE,
    follow: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> Manifest:
    """Back up topics (None: all topics) to a location; return the manifest once the backup is complete.

    `identities`: include identities, roles and the hashes of tokens. `resume`: continue a stopped backup; its complete
    partitions are not read again. `rate`: maximum bytes of rows per second. `follow`: pin the logs on the nodes, for
    increments (`BackupFollower`).

    Raises UnknownTopic, NoBackup; Conflict if another process makes the same backup; and errors of nodes.
    """
    transfer = BackupTransfer(client)
    begun_ms = time.time_ns() // 1_000_000
    catalog = await transfer.catalog()
    wanted = _wanted(catalog["topics"], topics)
    if resume is not None:
        manifests.check_id(resume)
        if not await in_thread(lambda: resume in location.folders(), location.shown):
            raise NoBackup(f"there is no backup {resume!r} in {location.shown} that could be resumed")
        if await in_thread(lambda: location.exists(f"{resume}/{manifests.MANIFEST}"), location.shown):
            return await in_thread(lambda: manifests.read(location, resume, key), location.shown)
    run = _Run(transfer, location, resume or manifests.new_id(begun_ms), key, Pace(rate), on_progress, follow=follow)
    if topics is None and catalog["hidden"]:
        run.warnings.append(f"{catalog['hidden']} topics are left out: the user of this backup has no right on them")
    run.made_of = {row["name"]: [catalog["cluster_uuid"], row["number"]] for row in wanted}
    held = location.hold(run.backup_id)
    await in_thread(held.__enter__, location.shown)
    try:
        only = None if topics is None else tuple(sorted(topics))
        return await _make(run, wanted, catalog, begun_ms, only, identities=identities, at_once=at_once)
    finally:
        held.__exit__(None, None, None)


async def _make(
    run: _Run,
    wanted: list[dict[str, Any]],
    catalog: dict[str, Any],
    begun_ms: int,
    only: tuple[str, ...] | None,
    *,
    identities: bool,
    at_once: int,
) -> Manifest:
    location, key = run.location, run.key
    access = await run.transfer.access() if identities else None
    parts = await run.partitions(wanted, at_once)
    await run.leave_out_recreated(parts)
    manifest = Manifest(
        backup_id=run.backup_id,
        kind=FULL,
        cluster=catalog["cluster"],
        cluster_uuid=catalog["cluster_uuid"],
        version=catalog["version"],
        feature_level=catalog["feature_level"],
        begun_ms=begun_ms,
        ended_ms=time.time_ns() // 1_000_000,
        topics=tuple(_topic(row, parts[row["name"]]) for row in wanted if row["name"] in parts),
        access=access,
        warnings=tuple(run.warnings),
        key_id=None if key is None else key.key_id,
        only=only,
    )
    await in_thread(lambda: manifests.write(location, manifest, key), location.shown)
    return manifest


def _wanted(rows: list[dict[str, Any]], topics: Collection[str] | None) -> list[dict[str, Any]]:
    if topics is not None:
        there = {row["name"] for row in rows}
        missing = sorted(set(topics) - there)
        if missing:
            raise UnknownTopic(f"there is no topic {missing[0]!r}", topic=missing[0])
        rows = [row for row in rows if row["name"] in topics]
    return rows


def _topic(row: dict[str, Any], parts: tuple[PartitionPart, ...]) -> TopicPart:
    return TopicPart(
        row["name"],
        row["number"],
        row["kind"],
        row["initial_partitions"],
        row["replicas"],
        row["settings"],
        row["owner"],
        parts,
    )


class _Run:
    """The creation of one backup."""

    def __init__(
        self,
        transfer: BackupTransfer,
        location: Location,
        backup_id: str,
        key: BackupKey | None,
        pace: Pace,
        on_progress: OnProgress,
        *,
        follow: bool,
    ) -> None:
        self._pace = pace
        self._follow = follow
        self.backup_id = backup_id
        self.warnings: list[str] = []
        self.transfer = transfer
        self.location = location
        self.key = key
        self.made_of: dict[str, list[Any]] = {}
        """For each topic, the cluster and the topic's number. A recreated topic has a new number."""
        self._on_progress = on_progress
        self._progress = Progress()
        self._gone: set[str] = set()

    async def partitions(self, topics: list[dict[str, Any]], at_once: int) -> dict[str, tuple[PartitionPart, ...]]:
        """Copy the partitions of each topic; leave out topics that are deleted meanwhile or being restored."""
        shut = [row["name"] for row in topics if RESTORING in row["settings"]]
        self.warnings += [f"topic {name} is left out: it is being restored itself" for name in shut]
        wanted = [
            (row["name"], number) for row in topics if row["name"] not in shut for number in range(row["partitions"])
        ]
        self._progress.partitions = len(wanted)
        self._on_progress(self._progress)
        found: dict[tuple[str, int], PartitionPart] = {}

        async def one(item: tuple[str, int]) -> None:
            topic, number = item
            if topic in self._gone:
                return
            try:
                found[item] = await self._partition(topic, number)
            except UnknownTopic:
                self._gone.add(topic)
                self.warnings.append(f"topic {topic} is left out: it was deleted meanwhile")
                return
            self._progress.partitions_done += 1
            self._progress.topic = topic
            self._on_progress(self._progress)

        def read() -> list[tuple[str, int, int]]:
            return [(topic, number, part.index) for (topic, number), part in found.items()]

        work = partial(several, one, wanted, at_once)
        if self._follow:
            await with_pins(work, self.transfer, self.backup_id, read)
        else:
            await work()
        names = [row["name"] for row in topics if row["name"] not in shut and row["name"] not in self._gone]
        return {
            name: tuple(found[name, number] for number in sorted(n for topic, n in found if topic == name))
            for name in names
        }

    async def leave_out_recreated(self, parts: dict[str, tuple[PartitionPart, ...]]) -> None:
        """Leave out topics that were recreated meanwhile.

        Nodes get only the names of topics, so the data may be of either topic."""
        now = {row["name"]: row["number"] for row in (await self.transfer.catalog())["topics"]}
        for name in list(parts):
            number = self.made_of[name][1]
            if now.get(name, number) != number:
                del parts[name]
                self.warnings.append(f"topic {name} is left out: it was deleted and recreated meanwhile")

    async def _partition(self, topic: str, number: int) -> PartitionPart:
        folder = f"data/{topic}/{number}"
        done = f"{self.backup_id}/{folder}/{DONE}"
        if await in_thread(lambda: self.location.exists(done), self.location.shown):
            with suppress(DamagedBackup, KeyError, TypeError, ValueError):
                read = partial(manifests.read_document, self.location, self.backup_id, f"{folder}/{DONE}", self.key)
                found = await in_thread(read, self.location.shown)
                part = PartitionPart.of(found)
                part.check(folder)
                if found["of"] == self.made_of[topic]:
                    self._progress.bytes += part.plain_bytes
                    self._progress.bytes_done += part.plain_bytes
                    return part
        for attempt in range(1, ATTEMPTS + 1):
            before = self._progress.bytes_done
            try:
                part = await self._attempt(topic, number, folder)
                break
            except UnknownTopic:
                raise
            except (NotFound, Unavailable) as error:
                if isinstance(error, NoBackup) or attempt == ATTEMPTS:
                    raise
                # The leader changed, or it was stalled for long. The rows read so far belong to a snapshot that is
                # gone.
                self._progress.bytes_done = before
                await anyio.sleep(PAUSE_S)
        content = {**asdict(part), "of": self.made_of[topic]}
        document = partial(
            manifests.write_document, self.location, self.backup_id, f"{folder}/{DONE}", content, self.key
        )
        await in_thread(document, self.location.shown)
        return part

    async def _attempt(self, topic: str, number: int, folder: str) -> PartitionPart:
        if self._follow:
            # Pin before reading the rows, so that no entry after them is lost.
            await self.transfer.pin_log(topic, number, self.backup_id, None)
        rows = RowFiles(self.location, self.backup_id, folder, self.key)
        return await copy_rows(self.transfer, topic, number, rows, self._pace, self._progress, self._on_progress)
