"""Create the topics of a backup again. They are shut until all of their partitions are restored, and then opened."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sandq.backup import increments
from sandq.backup import manifest as manifests
from sandq.backup.errors import DamagedBackup
from sandq.backup.keys import BackupKey
from sandq.backup.limits import LimitPlan, defined_limits, plan_limits
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest, PartitionPart, TopicPart
from sandq.backup.point_in_time import find_moment, made_backup
from sandq.backup.verify import Blocks, verify_topics
from sandq.backup.work import AT_ONCE, OnProgress, Pace, Progress, in_thread, several
from sandq.client import Client
from sandq.client.backups import BackupTransfer
from sandq.model.errors import Conflict, InvalidRequest, NotFound, TopicExists, UnknownTopic
from sandq.model.group_limits import GroupLimit
from sandq.model.names import LIMITS_TOPIC, RESTORING, check_new_topic
from sandq.model.outbox import DEAD_LETTER_TOPIC

AHEAD: Final = 2
"""Number of blocks that are read at a time from a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore."""

    backup_id: str
    topics: Mapping[str, str]
    """Names in the backup, with the names after the restore."""
    partitions: int
    rows: int
    bytes: int
    """Size of the rows."""
    paused_groups: Mapping[str, Sequence[str]]
    """Paused groups by topic: they get no messages until they are resumed."""
    identities: int = 0
    limits: Sequence[str] = field(default_factory=list)
    """Names of the named limits that were set."""
    warnings: Sequence[str] = field(default_factory=list)


async def restore_backup(
    client: Client,
    location: Location,
    backup_id: str,
    *,
    topics: Collection[str] | None = None,
    names: Mapping[str, str] | None = None,
    prefix: str = "",
    replicas: int | None = None,
    identities: bool = False,
    resume_groups: bool = False,
    verify: bool = True,
    with_increments: bool = True,
    at_ms: int | None = None,
    work: Path | None = None,
    key: BackupKey | None = None,
    rate: int | None = None,
    at_once: int = AT_ONCE,
    on_progress: OnProgress = lambda progress: None,
) -> Restored:
    """Restore topics of a backup (`topics`; None for all) into a cluster that has no topics of their names.

    The named limits that their groups use are set if the cluster does not have them; with all topics, or with the topic
    `sandq.limits`, all limits of the backup. A limit that the cluster has stays as it is, with a warning if it is
    different.

    `at_ms`: restore as of this time, in epoch milliseconds; None for the latest time of the increments, if there are
    any. `with_increments`: False restores the backup itself. `work`: directory for temporary data of a restore with
    increments, twice the size of the restored data; None for the default directory. `names`: new names of topics;
    `prefix` is put before all other names. `replicas`: replaces the number of replicas. `identities`: also restore
    identities and roles if the backup has them; existing ones are kept. `resume_groups`: let consumers receive due
    messages at once; otherwise groups stay paused. `verify`: read all of the backup before anything is changed. `rate`:
    maximum bytes of rows per second. A stopped restore continues if it is started again with the same backup, time and
    names.

    Raises NoBackup, DamagedBackup, WrongKey; InvalidRequest if the time cannot be restored, with the partition and the
    nearest times; TopicExists; NotFound if neither the backup nor the cluster has a limit that a group uses; errors of
    nodes.
    """
    manifest = await in_thread(lambda: manifests.read(location, backup_id, key), location.shown)
    manifests.check_level(manifest)
    there = 0
    if with_increments and at_ms is None:
        there = await in_thread(partial(increments.count, location, backup_id), location.shown)
    restore = partial(
        _restore,
        client,
        names=names or {},
        prefix=prefix,
        replicas=replicas,
        identities=identities,
        resume_groups=resume_groups,
        key=key,
        rate=rate,
        at_once=at_once,
        on_progress=on_progress,
        all_limits=topics is None or LIMITS_TOPIC in topics,
    )
    if at_ms is None and not there:
        limits = defined_limits(manifest.topics)
        return await restore(location, manifest, topics, limits=limits, verify=verify)
    if not with_increments:
        raise InvalidRequest("a point in time needs increments, and they are to be left out")
    moment = await in_thread(partial(find_moment, location, manifest, key, topics, at_ms), location.shown)
    async with made_backup(location, manifest, key, moment, work, on_progress) as (made_location, made):
        # The data was verified when this backup was made. A restarted restore continues only if it makes the same rows:
        # a new increment may have added entries of that moment.
        entries = [(topic.number, part.partition, part.index) for topic in made.topics for part in topic.partitions]
        restored = await restore(made_location, made, None, limits=moment.limits, verify=False, entries=entries)
    return replace(restored, backup_id=backup_id, warnings=[*moment.warnings, *restored.warnings])


async def _restore(
    client: Client,
    location: Location,
    manifest: Manifest,
    topics: Collection[str] | None,
    *,
    names: Mapping[str, str],
    prefix: str,
    replicas: int | None,
    identities: bool,
    resume_groups: bool,
    verify: bool,
    key: BackupKey | None,
    rate: int | None,
    at_once: int,
    on_progress: OnProgress,
    all_limits: bool,
    limits: Mapping[str, GroupLimit],
    entries: Sequence[tuple[int, int, int]] = (),
) -> Restored:
    """`limits`: the named limits that the backup defines. `all_limits`: whether all of them are restored."""
    named = [manifest.topic(name) for name in dict.fromkeys(topics)] if topics is not None else [*manifest.topics]
    wanted = [topic for topic in named if topic.name != LIMITS_TOPIC]
    if identities and manifest.access is None:
        raise InvalidRequest(f"backup {manifest.backup_id} has no identities: it was made without them")
    renamed = _renamed(wanted, names, prefix)
    if verify:
        await verify_topics(location, manifest, wanted, key, at_once, on_progress)
    run = _Run(client, location, manifest, key, renamed, Pace(rate), on_progress, entries)
    plan = await run.check(wanted, limits, all_limits=all_limits)
    await run.set_limits(plan)
    made = await run.restore_access() if identities else 0
    await run.make(wanted, replicas)
    await run.fill(wanted, at_once)
    await run.open(wanted)
    paused = await run.groups(resume=resume_groups)
    progress = run.progress
    return Restored(
        backup_id=manifest.backup_id,
        topics=renamed,
        partitions=progress.partitions_done,
        rows=run.rows,
        bytes=progress.bytes_done,
        paused_groups=paused,
        identities=made,
        limits=[*plan.new],
        warnings=run.warnings,
    )


def _renamed(topics: Sequence[TopicPart], names: Mapping[str, str], prefix: str) -> dict[str, str]:
    unknown = sorted(names.keys() - {topic.name for topic in topics})
    if unknown:
        raise UnknownTopic(f"{unknown[0]!r} is not one of the topics to restore", topic=unknown[0])
    renamed = {topic.name: check_new_topic(names.get(topic.name, prefix + topic.name)) for topic in topics}
    if len(set(renamed.values())) < len(renamed):
        raise InvalidRequest("two topics would have the same name")
    return renamed


class _Run:
    """One restore."""

    def __init__(
        self,
        client: Client,
        location: Location,
        manifest: Manifest,
        key: BackupKey | None,
        renamed: Mapping[str, str],
        pace: Pace,
        on_progress: OnProgress,
        entries: Sequence[tuple[int, int, int]],
    ) -> None:
        """`entries`: the last entry of each partition, if increments were used."""
        self._pace = pace
        self.progress = Progress()
        self.rows = 0
        self.warnings: list[str] = []
        self._client = client
        self._transfer = BackupTransfer(client)
        self._location = location
        self._manifest = manifest
        self._key = key
        self._renamed = renamed
        self._on_progress = on_progress
        self._numbers: dict[int, int] = {}
        self._opened: set[str] = set()
        """Topics of the backup that this restore had opened before it was stopped."""
        made_of = repr(sorted(renamed.items())) + (repr(sorted(entries)) if entries else "")
        self._restore_id = f"{manifest.backup_id}.{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
        """Id of the restore, which is the same after a restart."""

    async def restore_access(self) -> int:
        """Restore roles, then identities; return the number of new identities."""
        access = self._manifest.access
        assert access is not None
        for name, grants in access["roles"].items():
            await self._transfer.put_role(name, grants)
        made = 0
        for identity in access["identities"]:
            try:
                await self._transfer.put_identity(identity, is_new=True)
                made += 1
            except Conflict:
                self.warnings.append(f"identity {identity['principal']} is there already, and stays as it is")
        return made

    async def check(
        self, topics: Sequence[TopicPart], limits: Mapping[str, GroupLimit], *, all_limits: bool
    ) -> LimitPlan:
        """Compare the cluster with the backup before anything is created, and return the named limits to set.

        Raises TopicExists; the errors of `plan_limits`."""
        catalog = await self._transfer.catalog()
        there = {row["name"]: row for row in catalog["topics"]}
        if catalog["cluster_uuid"] == self._manifest.cluster_uuid:
            self._numbers = {row["number"]: row["number"] for row in catalog["topics"]}
        self._find_opened(topics, there)
        record = there[LIMITS_TOPIC]["settings"] if LIMITS_TOPIC in there else None
        plan = plan_limits(topics, limits, record, all_limits=all_limits)
        self.warnings += plan.warnings
        return plan

    async def set_limits(self, plan: LimitPlan) -> None:
        """Set the named limits of the backup that the cluster does not have."""
        for name, limit in plan.new.items():
            await self._client.admin.set_limit(name, **limit.shown())

    async def make(self, topics: Sequence[TopicPart], replicas: int | None) -> None:
        """Create all topics first, because messages between partitions refer to the new topic numbers."""
        for topic in topics:
            name = self._renamed[topic.name]
            if topic.name in self._opened:
                continue
            copies = topic.replicas if replicas is None else replicas
            number = await self._transfer.restore_topic(name, topic.made_with, copies, self._restore_id)
            self._numbers[topic.number] = number

    def _find_opened(self, topics: Sequence[TopicPart], there: Mapping[str, Mapping[str, Any]]) -> None:
        """Find the topics that this restore has created and opened before it was stopped; it continues with the others.

        Raises TopicExists.
        """
        is_shut = False
        for topic in topics:
            name = self._renamed[topic.name]
            row = there.get(name)
            if row is None:
                continue
            if row["restored_by"] != self._restore_id:
                raise TopicExists(f"there is a topic {name!r} already", topic=name)
            self._numbers[topic.number] = row["number"]
            if RESTORING in row["settings"]:
                is_shut = True
            else:
                self._opened.add(topic.name)
        if self._opened and not is_shut:
            name = self._renamed[min(self._opened)]
            raise TopicExists(f"there is a topic {name!r} already, which this restore has made", topic=name)

    def _left(self, topics: Sequence[TopicPart]) -> list[TopicPart]:
        return [topic for topic in topics if topic.name not in self._opened]

    async def fill(self, topics: Sequence[TopicPart], at_once: int) -> None:
        """Restore the rows of all partitions."""
        wanted = [(topic, part) for topic in self._left(topics) for part in topic.partitions]
        self.progress = Progress(len(wanted), 0, sum([part.plain_bytes for _, part in wanted]))
        self._on_progress(self.progress)
        await several(self._fill, wanted, at_once)

    async def _fill(self, item: tuple[TopicPart, PartitionPart]) -> None:
        topic, part = item
        try:
            await self._put(topic, part)
        except Conflict:
            # The same restore also runs elsewhere, and was faster.
            if not await self._is_open(topic):
                raise
        self.progress.partitions_done += 1
        self.progress.topic = self._renamed[topic.name]
        self._on_progress(self.progress)

    async def _is_open(self, topic: TopicPart) -> bool:
        name = self._renamed[topic.name]
        rows = [row for row in (await self._transfer.catalog())["topics"] if row["name"] == name]
        return bool(rows and rows[0]["restored_by"] == self._restore_id and RESTORING not in rows[0]["settings"])

    async def _put(self, topic: TopicPart, part: PartitionPart) -> None:
        """Restore the rows of a partition. Raises Conflict; DamagedBackup if the rows do not make a valid partition."""
        name, restore_id, progress = self._renamed[topic.name], self._restore_id, self.progress
        targets = [[old, new] for old, new in sorted(self._numbers.items())]
        state = await self._transfer.begin_partition(name, part.partition, restore_id, targets)
        first = part.blocks if state["whole"] else state["next_chunk"]
        number = 0
        blocks = Blocks(self._location, self._manifest, part, self._key)
        try:
            while not state["whole"] and (found := await self._read(blocks)):
                for block in found:
                    if number >= first:
                        await self._pace.take(len(block))
                        await self._transfer.put_rows(name, part.partition, restore_id, number, block)
                    number += 1
                    progress.bytes_done += len(block)
                    self._on_progress(progress)
        finally:
            await in_thread(blocks.close, self._location.shown)
        try:
            done = await self._transfer.end_partition(name, part.partition, restore_id, part.blocks)
        except Conflict as error:
            if await self._is_open(topic):
                return
            shown = f"{self._location.shown}/{self._manifest.backup_id}/data/{topic.name}/{part.partition}"
            raise DamagedBackup(shown, 0, error.message) from None
        self.rows += done["rows"]

    async def _read(self, blocks: Blocks) -> list[bytes]:
        return await in_thread(partial(blocks.take, AHEAD), self._location.shown)

    async def open(self, topics: Sequence[TopicPart]) -> None:
        """Open the topics for use."""
        there = {topic.name for topic in await self._client.admin.list_topics()}
        for topic in self._left(topics):
            name, dead = self._renamed[topic.name], topic.settings.get(DEAD_LETTER_TOPIC)
            if dead is not None:
                dead = self._renamed.get(dead, dead)
                if dead not in there:
                    self.warnings.append(f"topic {name} has no dead letter topic: {dead} is not there")
                    dead = None
            await self._transfer.open_topic(name, self._restore_id, dead)

    async def groups(self, *, resume: bool) -> dict[str, list[str]]:
        """Return the paused groups by topic. `resume`: resume them instead."""
        paused: dict[str, list[str]] = {}
        for name in self._renamed.values():
            rows: list[dict[str, Any]] = await self._client.admin.groups(name)
            groups = sorted({str(row["group"]) for row in rows})
            for group in groups if resume else ():
                try:
                    await self._client.admin.resume_group(name, group)
                except NotFound:
                    continue
            if groups and not resume:
                paused[name] = groups
        return paused
