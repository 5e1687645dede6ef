"""Follow a cluster after a backup: store the later commits as increments, one after the other.

The log space that nodes reserve for a follower is limited in bytes and time. If too little of a partition's log was
kept, the partition gets new rows, as in a backup. The time between its last followed entry and the new rows cannot be
restored for this partition; the result reports this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio

from sandq.backup import chain, increments
from sandq.backup import manifest as manifests
from sandq.backup.chain import Entries, Summary, Topic, Window
from sandq.backup.errors import NoBackup
from sandq.backup.increments import IncrementWriter
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest, PartitionPart
from sandq.backup.pins import with_pins
from sandq.backup.row_files import RowFiles, copy_rows
from sandq.backup.work import OnProgress, Pace, Progress, in_thread, several
from sandq.client import Client
from sandq.client.backups import LOG_BYTES, BackupTransfer, LogPiece
from sandq.model.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Retriable,
    SandqError,
    StorageFailed,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.names import RESTORING

AT_ONCE: Final = 4
"""Number of partitions that are read at the same time."""
IDLE_MS: Final = 60_000
"""Minimum interval between increments without changes, in ms."""
SET_BACK_MS: Final = 60_000
"""If a leader's time is this much before an earlier time of the partition, in ms, a clock was set back."""
WARNINGS_MOST: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """The result of one step."""

    backup_id: str
    number: int | None
    """None if nothing has changed and no increment was made."""
    reach_ms: int | None
    """Time up to which every partition can be restored; None if no partition is followed."""
    bytes: int = 0
    """Size of its file, and of its files of rows."""
    entries: int = 0
    gone: Sequence[str] = ()
    """Partitions that got new rows because the nodes had not kept enough of their logs, with the reason."""
    rebased_bytes: int = 0
    """Size of the rows of these partitions, and of new partitions, in bytes."""
    fullest: float = 0.0
    """Highest used share (0 to 1) of the log space that a node keeps for a reader, over all partitions.

    Measured when this increment began to read each of them."""
    errors: Sequence[str] = ()
    """Failures of partitions that could not be read; the next increment reads them again."""
    left: Sequence[str] = ()
    """Topics that are not followed any more: they were deleted, or the right on them was lost."""

    def shown(self) -> dict[str, Any]:
        """Return the increment as JSON."""
        return {
            "backup_id": self.backup_id,
            "increment": self.number,
            "reach_ms": self.reach_ms,
            "bytes": self.bytes,
            "entries": self.entries,
            "gone": list(self.gone),
            "rebased_bytes": self.rebased_bytes,
            "errors": list(self.errors),
            "left": list(self.left),
        }


@dataclass(slots=True)
class _Chain:
    """The state of the chain."""

    number: int
    """Number of the next increment."""
    previous: bytes
    topics: tuple[Topic, ...]
    topics_at: int
    windows: tuple[Window, ...]
    ended_ms: int
    salts: tuple[tuple[int, bytes], ...] = ()
    """The salts of the last increments with their numbers, which identify their files."""


class BackupFollower:
    """Adds increments to one backup. Call `step` repeatedly, from one task."""

    def __init__(
        self,
        client: Client,
        location: Location,
        manifest: Manifest,
        *,
        key: BackupKey | None = None,
        rate: int | None = None,
        on_progress: OnProgress = lambda progress: None,
    ) -> None:
        self.manifest = manifest
        self._transfer = BackupTransfer(client)
        self._location = location
        self._key = key
        self._pace = Pace(rate)
        self._on_progress = on_progress
        self._chain: _Chain | None = None

    @property
    def reach_ms(self) -> int | None:
        """Time up to which every partition can be restored, as of the last increment; None before the first."""
        if self._chain is None:
            return None
        return min([window.to_ms for window in self._chain.windows if window.last is None], default=None)

    async def step(self, *, always: bool = False) -> Increment:
        """Make an increment of everything committed since the last one. If there is nothing, make it only if `always`.

        A stopped step leaves no increment behind, and the next one includes its content. Raises Conflict if another
        process follows this backup; NoBackup if it belongs to another cluster or is gone; and errors of nodes and of
        the location.
        """
        location, backup_id = self._location, self.manifest.backup_id
        await self._check_there()  # locking a deleted backup would create its folder again
        held = location.hold(backup_id)
        await in_thread(held.__enter__, location.shown)
        try:
            await self._check_there()
            there = await in_thread(partial(increments.count, location, backup_id), location.shown)
            if self._chain is None:
                self._chain = await in_thread(partial(self._load, there), location.shown)
            elif not await in_thread(partial(self._is_own, self._chain, there), location.shown):
                self._chain = None
                raise Conflict(f"another process follows backup {backup_id} in {location.shown}, too")
            return await self._step(self._chain, always)
        finally:
            held.__exit__(None, None, None)

    async def keep(self) -> float:
        """Pin the logs after the last increment again, because nodes release them after five minutes without a request.

        Returns the maximum used share of the nodes' log space for a reader.
        """
        known, fullest = self._chain, 0.0
        if known is None:
            return fullest
        names = {topic.number: topic.name for topic in known.topics}
        for window in known.windows:
            if window.last is None and window.topic in names:
                with suppress(SandqError):
                    ask = names[window.topic], window.partition, self.manifest.backup_id, window.index
                    fullest = max(fullest, (await self._transfer.pin_log(*ask)).used)
        return fullest

    async def _check_there(self) -> None:
        name = f"{self.manifest.backup_id}/{manifests.MANIFEST}"
        if not await in_thread(partial(self._location.exists, name), self._location.shown):
            raise NoBackup(f"backup {self.manifest.backup_id} is not there (any more)")

    def _is_own(self, known: _Chain, there: int) -> bool:
        """Return whether the increments are those that this follower made.

        In a location without locks, another process may have overwritten them.
        """
        if there < known.number:
            raise StorageFailed(
                f"{self._location.shown}: of {known.number} increments of backup {self.manifest.backup_id} "
                f"it lists {there}"
            )
        at = self._location, self.manifest.backup_id
        if there > known.number + 1 or (
            there > known.number and not increments.is_stopped(*at, known.number, self._key)
        ):
            return False
        return all([increments.salt_of(*at, number, self._key) == salt for number, salt in known.salts])

    def _load(self, there: int) -> _Chain:
        manifest, key = self.manifest, self._key
        if there and increments.is_stopped(self._location, manifest.backup_id, there - 1, key):
            there -= 1  # the incomplete increment is made again
        if not there:
            topics, windows = chain.topics_of(manifest), chain.windows_of(manifest)
            return _Chain(0, b"", topics, chain.OF_MANIFEST, windows, manifest.ended_ms)
        last, digest = increments.read_summary(self._location, manifest.backup_id, there - 1, key)
        topics = topics_at(self._location, manifest, last, key)
        salts = ((there - 1, increments.salt_of(self._location, manifest.backup_id, there - 1, key)),)
        return _Chain(there, digest, topics, last.topics_at, last.windows, last.ended_ms, salts)

    async def _step(self, before: _Chain, always: bool) -> Increment:
        begun_ms = time.time_ns() // 1_000_000
        catalog = await self._transfer.catalog()
        if catalog["cluster_uuid"] != self.manifest.cluster_uuid:
            raise NoBackup(
                f"backup {self.manifest.backup_id} is of cluster {self.manifest.cluster}, and this one is "
                f"{catalog['cluster']} ({catalog['cluster_uuid']})"
            )
        only = self.manifest.only
        rows = [row for row in catalog["topics"] if only is None or row["name"] in only]
        topics = tuple(chain.topic_of(row) for row in rows if RESTORING not in row["settings"])
        create = partial(IncrementWriter, self._location, self.manifest.backup_id, before.number, self._key)
        writer = await in_thread(create, self._location.shown)
        try:
            run = _Run(self._transfer, self._location, self.manifest.backup_id, self._key, before, writer, self._pace)
            await run.follow(topics, self._on_progress)
            await self._check_same(topics)
            is_same = topics == before.topics and not run.has_news
            if is_same and not always and abs(begun_ms - before.ended_ms) < IDLE_MS:
                await in_thread(writer.give_up, self._location.shown)
                return Increment(
                    backup_id=self.manifest.backup_id, number=None, reach_ms=run.reach_ms, errors=run.errors
                )
            summary = Summary(
                number=before.number,
                previous=before.previous,
                time_ms=catalog["time_ms"],
                begun_ms=begun_ms,
                ended_ms=time.time_ns() // 1_000_000,
                version=catalog["version"],
                level=catalog["feature_level"],
                topics=None if topics == before.topics else topics,
                topics_at=before.topics_at if topics == before.topics else before.number,
                windows=chain.bounded(run.windows),
                bases=run.bases,
                warnings=tuple([*run.gone, *run.left, *run.errors][:WARNINGS_MOST]),
            )
            digest = await in_thread(partial(writer.end, summary), self._location.shown)
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(SandqError):
                await in_thread(writer.give_up, self._location.shown)
            raise
        return self._made(before, run, writer, topics, summary, digest)

    async def _check_same(self, topics: Sequence[Topic]) -> None:
        """Raise Unavailable if a topic was recreated meanwhile.

        Requests to nodes name a topic without its number. So the entries may be from the old topic or from the new one.
        """
        now = {row["name"]: row["number"] for row in (await self._transfer.catalog())["topics"]}
        for topic in topics:
            if now.get(topic.name, topic.number) != topic.number:
                raise Unavailable(f"topic {topic.name} was deleted and recreated meanwhile: the increment is given up")

    def _made(
        self,
        before: _Chain,
        run: _Run,
        writer: IncrementWriter,
        topics: tuple[Topic, ...],
        summary: Summary,
        digest: bytes,
    ) -> Increment:
        number, ended_ms = before.number, summary.ended_ms
        salts = (*before.salts[-1:], (number, writer.salt))
        self._chain = _Chain(number + 1, digest, topics, summary.topics_at, summary.windows, ended_ms, salts)
        rebased = sum([part.plain_bytes for part in run.bases.values()])
        stored = writer.size + sum([file.bytes for part in run.bases.values() for file in part.files])
        return Increment(
            backup_id=self.manifest.backup_id,
            number=number,
            reach_ms=summary.reach_ms,
            bytes=stored,
            entries=run.entries,
            gone=run.gone,
            rebased_bytes=rebased,
            fullest=run.fullest,
            errors=run.errors,
            left=run.left,
        )


class _Run:
    """The creation of one increment."""

    def __init__(
        self,
        transfer: BackupTransfer,
        location: Location,
        backup_id: str,
        key: BackupKey | None,
        before: _Chain,
        writer: IncrementWriter,
        pace: Pace,
    ) -> None:
        self.entries = 0
        self.fullest = 0.0
        self.gone: list[str] = []
        self.left: list[str] = []
        self.errors: list[str] = []
        self._before = before.topics
        self.bases: dict[tuple[int, int], PartitionPart] = {}
        self._over = [window for window in before.windows if window.last is not None]
        self._alive = {window.topic_partition: window for window in before.windows if window.last is None}
        self._durable = {topic_partition: window.index for topic_partition, window in self._alive.items()}
        """Index of the last entry of each partition in complete increments; for a partition without such an entry, the
        index of its copied rows."""
        self._ended = False
        self._transfer = transfer
        self._location = location
        self._backup_id = backup_id
        self._key = key
        self._number = before.number
        self._writer = writer
        self._pace = pace
        self._writing = anyio.Lock()
        self._progress = Progress()

    @property
    def has_news(self) -> bool:
        """True if anything has changed other than the time."""
        return bool(self.entries or self.bases or self._ended)

    @property
    def windows(self) -> list[Window]:
        """All current windows."""
        return [*self._over, *[self._alive[topic_partition] for topic_partition in sorted(self._alive)]]

    @property
    def reach_ms(self) -> int | None:
        """Time up to which every partition can be restored."""
        return min([window.to_ms for window in self._alive.values()], default=None)

    async def follow(self, topics: Sequence[Topic], on_progress: OnProgress) -> None:
        """Read the new entries of all partitions of these topics."""
        wanted = [(topic, partition) for topic in topics for partition in range(topic.partitions)]
        there = {(topic.number, partition) for topic, partition in wanted}
        left = {
            topic.number: topic.name
            for topic in self._before
            if any([(topic.number, partition) not in there for partition in range(topic.partitions)])
        }
        for topic_partition in [topic_partition for topic_partition in self._alive if topic_partition not in there]:
            self._end(topic_partition, "the topic was deleted, or the right on it was lost")
        for number in sorted(left):
            self.left.append(f"topic {left[number]} is not followed any more: it was deleted, or the right was lost")
        self._progress.partitions = len(wanted)

        async def one(item: tuple[Topic, int]) -> None:
            topic, partition = item
            try:
                await self._partition(topic, partition, on_progress)
            except (UnknownTopic, UnknownPartition):
                return  # it was deleted meanwhile: the next increment will notice
            except (NotFound, Retriable, Forbidden) as error:
                if isinstance(error, NoBackup):
                    raise
                self.errors.append(f"partition {partition} of topic {topic.name}: {error.message}")
            self._progress.partitions_done += 1
            self._progress.topic = topic.name
            on_progress(self._progress)

        names = {topic.number: topic.name for topic in topics}

        def pins() -> list[tuple[str, int, int]]:
            """Return the pins after the stored entries; this increment is not stored yet."""
            return [
                (names[window.topic], window.partition, self._durable.get(window.topic_partition, window.base_index))
                for window in self._alive.values()
                if window.topic in names
            ]

        work = partial(several, one, wanted, AT_ONCE)
        await with_pins(work, self._transfer, self._backup_id, pins)

    def _end(self, topic_partition: tuple[int, int], why: str) -> None:
        window = self._alive.pop(topic_partition, None)
        if window is not None:
            self._over.append(chain.ended(window, self._number, why))
            self._ended = True

    async def _partition(self, topic: Topic, partition: int, on_progress: OnProgress) -> None:
        window = self._alive.get((topic.number, partition))
        if window is None:
            await self._rebase(topic, partition, on_progress)
            return
        why = await self._take(topic, window)
        if why is not None:
            window = self._alive[window.topic_partition]
            await self._rebase(topic, partition, on_progress)
            self.gone.append(f"partition {partition} of topic {topic.name} got new rows: {why}")
            self._over.append(chain.ended(window, self._number, why))

    async def _take(self, topic: Topic, window: Window) -> str | None:
        """Read the entries after the known ones. Return why they are not available (any more), or None on success.

        On success all entries are read that existed at the first request.
        """
        pin, target, reach_ms = window.index, None, window.to_ms
        while True:
            piece = await self._transfer.read_log(
                topic.name, window.partition, self._backup_id, pin, window.index, window.term, LOG_BYTES
            )
            if piece.gone is not None:
                return piece.gone
            if target is None:
                target, reach_ms = piece.applied, _reach_ms(reach_ms, piece.time_ms)
                self.fullest = max(self.fullest, piece.used)
            if piece.entries:
                await self._write(window, piece)
                last = window.index + len(piece.entries) // 2
                window = replace(window, index=last, term=piece.entries[-2])
                self._alive[window.topic_partition] = window
            elif window.term is None:
                window = self._alive[window.topic_partition] = replace(window, term=piece.term_before)
            if window.index >= target or not piece.entries:
                self._alive[window.topic_partition] = replace(window, to_ms=reach_ms)
                return None

    async def _write(self, window: Window, piece: LogPiece) -> None:
        found = Entries(window.topic, window.partition, window.index + 1, piece.term_before, piece.entries)
        block = found.encode()
        await self._pace.take(len(block))
        async with self._writing:
            await in_thread(partial(self._writer.write, block), self._location.shown)
        self.entries += len(piece.entries) // 2
        self._progress.bytes_done += len(block)

    async def _rebase(self, topic: Topic, partition: int, on_progress: OnProgress) -> None:
        """Copy the rows of a partition; later entries continue after them."""
        pinned = await self._transfer.pin_log(topic.name, partition, self._backup_id, None)
        folder = chain.folder_of(self._number, topic.number, partition)
        files = RowFiles(self._location, self._backup_id, folder, self._key)
        part = await copy_rows(self._transfer, topic.name, partition, files, self._pace, self._progress, on_progress)
        topic_partition = topic.number, partition
        self.bases[topic_partition] = part
        self._durable.pop(topic_partition, None)
        to_ms = max(part.time_ms, pinned.time_ms)
        self._alive[topic_partition] = Window(
            topic=topic.number,
            partition=partition,
            base=self._number,
            base_index=part.index,
            base_ms=part.time_ms,
            index=part.index,
            term=None,
            to_ms=to_ms,
        )


def _reach_ms(before_ms: int, now_ms: int) -> int:
    """Return the time up to which a partition can be restored.

    Clocks of leaders differ a little. A time from a clock that was far ahead is dropped once the clock is right again.
    """
    return now_ms if now_ms < before_ms - SET_BACK_MS else max(before_ms, now_ms)


def topics_at(location: Location, manifest: Manifest, summary: Summary, key: BackupKey | None) -> tuple[Topic, ...]:
    """Return the topics that an increment covers. Blocking. Raises DamagedBackup."""
    if summary.topics is not None:
        return summary.topics
    if summary.topics_at == chain.OF_MANIFEST:
        return chain.topics_of(manifest)
    reader = increments.IncrementReader(location, manifest.backup_id, summary.topics_at, key)
    found = reader.read_summary()
    if found.topics is None:
        raise reader.wrong("it has no topics, but a later increment refers to them")
    return found.topics
