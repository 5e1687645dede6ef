"""Find the content of a backup with increments at a point in time, and make a backup of that moment."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandq.backup import chain, increments
from sandq.backup import manifest as manifests
from sandq.backup.chain import Summary, Topic, Window
from sandq.backup.errors import DamagedBackup, NoBackup, TruncatedBackup
from sandq.backup.follow import topics_at
from sandq.backup.keys import BackupKey
from sandq.backup.limits import defined_limits
from sandq.backup.locations import Directory, Location
from sandq.backup.manifest import Manifest, PartitionPart
from sandq.backup.work import OnProgress, Progress, in_thread
from sandq.model.errors import ConfigError, StorageFailed
from sandq.model.features import KNOWN
from sandq.model.group_limits import GroupLimit
from sandq.model.names import LIMITS_TOPIC

if TYPE_CHECKING:
    from sandq.backup.replay import Wanted

BEHIND_MS: Final = 60_000
"""Warn about a partition if its last time is this much before the latest time of all partitions, in ms."""
STEP_BYTES: Final = 4 << 20
"""Number of bytes that are read in one step."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The content of a chain at a point in time."""

    at_ms: int | None
    """None for the latest possible time of each partition."""
    topics: tuple[Topic, ...]
    windows: Mapping[tuple[int, int], Window]
    """Windows by topic and partition."""
    parts: Mapping[tuple[int, int], PartitionPart]
    """The rows with which each window begins."""
    limits: Mapping[str, GroupLimit]
    """The named limits that were defined."""
    level: int
    name: str
    """Distinguishes it from other moments of the same backup."""
    warnings: tuple[str, ...] = ()

    @property
    def wanted(self) -> list[Wanted]:
        """The sources of each partition."""
        replay = _replay()
        return [
            replay.Wanted(topic, self.windows[topic_partition], self.parts[topic_partition])
            for topic in self.topics
            for topic_partition in [(topic.number, partition) for partition in range(topic.partitions)]
        ]


def find_moment(
    location: Location, manifest: Manifest, key: BackupKey | None, names: Collection[str] | None, at_ms: int | None
) -> Moment:
    """Find the content of a backup with increments as of a time (None: the latest), for all topics or some. Blocking.

    Raises InvalidRequest with the partition and the nearest possible times; NoBackup if there was no such topic, or if
    there are no increments; DamagedBackup.
    """
    there = increments.count(location, manifest.backup_id)
    if not there:
        raise NoBackup(
            f"backup {manifest.backup_id} has no increments: it is from {chain.shown_time(manifest.begun_ms)} "
            f"to {chain.shown_time(manifest.ended_ms)}, and cannot be restored as of any other time"
        )
    read = partial(increments.read_summary, location, manifest.backup_id, key=key)
    try:
        last, _ = read(there - 1)
    except TruncatedBackup as error:
        name = chain.name_of(there - 1)
        why = f"{error.why}; without this last file, everything before it can be restored"
        raise DamagedBackup(f"{location.shown}/{manifest.backup_id}/{name}", error.at, why) from None
    if last.level > KNOWN.highest:
        raise NoBackup(
            f"the increments of backup {manifest.backup_id} are of feature level {last.level} (sandq {last.version}), "
            f"and this version supports {KNOWN}: restore it with a version as new as that"
        )
    topics, later = _topics(location, manifest, key, last, at_ms)
    warnings: list[str] = []
    if at_ms is not None and later is not None:
        topics = _with_new(topics, later, last.windows, at_ms, warnings)
    limits = defined_limits(topics)
    named = _named(topics, names, manifest, last, at_ms)
    topics = tuple(topic for topic in named if topic.name != LIMITS_TOPIC)
    if names is None:
        topics = _without_gone(topics, later, last.windows, at_ms, warnings)
    windows = chain.choose(topics, last.windows, at_ms)
    if at_ms is None:
        shown = {topic.number: topic.name for topic in topics}
        latest_ms = max([window.to_ms for window in windows.values()], default=0)
        warnings += [
            f"partition {window.partition} of topic {shown[window.topic]} is as of {chain.shown_time(window.to_ms)}: "
            f"{window.why or 'it could not be read since'}"
            for window in windows.values()
            if window.last is not None or window.to_ms < latest_ms - BEHIND_MS
        ]
    parts = _parts(manifest, windows, lambda number: read(number)[0])
    name = f"{manifest.backup_id}-{'latest' if at_ms is None else at_ms}"
    return Moment(at_ms, topics, windows, parts, limits, last.level, name, tuple(warnings))


def _topics(
    location: Location, manifest: Manifest, key: BackupKey | None, last: Summary, at_ms: int | None
) -> tuple[tuple[Topic, ...], tuple[Topic, ...] | None]:
    """Return (topics as of `at_ms`, topics of the next listing). The second is None if there is no later listing."""
    if at_ms is None or last.time_ms <= at_ms:
        return topics_at(location, manifest, last, key), None
    # Binary search for the last increment whose topics were listed by then: `before`; -1 if there is none.
    before, after = -1, last
    while after.number - before > 1:
        middle, _ = increments.read_summary(location, manifest.backup_id, (before + after.number) // 2, key)
        if middle.time_ms <= at_ms:
            before = middle.number
        else:
            after = middle
    later = topics_at(location, manifest, after, key)
    if before < 0:
        return chain.topics_of(manifest), later
    summary, _ = increments.read_summary(location, manifest.backup_id, before, key)
    return topics_at(location, manifest, summary, key), later


def _with_new(
    topics: tuple[Topic, ...], later: tuple[Topic, ...], windows: Sequence[Window], at_ms: int, warnings: list[str]
) -> tuple[Topic, ...]:
    """Add topics and partitions that were created between two listings.

    Topics that existed at `at_ms` are added. If a topic was not read by then, it cannot be restored. Partitions are
    added only if they were read.
    """
    there = {topic.number: topic for topic in topics}
    for topic in later:
        before = there.get(topic.number)
        if before is None:
            if topic.created_ms <= at_ms:
                there[topic.number] = topic
        elif topic.partitions > before.partitions:
            added = range(before.partitions, topic.partitions)
            own = [window for window in windows if window.topic == topic.number and window.partition in added]
            if {window.partition for window in own if window.has(at_ms)} == set(added):
                there[topic.number] = replace(before, partitions=topic.partitions)
            else:
                warnings.append(
                    f"partitions of topic {topic.name} from {before.partitions} on are left out: they were added at "
                    "about that time, and their content was not read by then"
                )
    return tuple(there.values())


def _named(
    topics: tuple[Topic, ...], names: Collection[str] | None, manifest: Manifest, last: Summary, at_ms: int | None
) -> tuple[Topic, ...]:
    if names is None:
        return topics
    there = {topic.name: topic for topic in topics}
    for name in names:
        if name not in there:
            numbers = {topic.number for topic in manifest.topics if topic.name == name}
            ends = [window.to_ms for window in last.windows if window.topic in numbers]
            until = f"; it was deleted, and can be restored up to {chain.shown_time(min(ends))}" if ends else ""
            when = "any more" if at_ms is None else f"as of {chain.shown_time(at_ms)}"
            raise NoBackup(f"backup {manifest.backup_id} has no topic {name!r} {when}{until}")
    return tuple(there[name] for name in dict.fromkeys(names))


def _without_gone(
    topics: tuple[Topic, ...],
    later: tuple[Topic, ...] | None,
    windows: Sequence[Window],
    at_ms: int | None,
    warnings: list[str],
) -> tuple[Topic, ...]:
    """Leave out topics that existed but cannot be restored, with a warning.

    These are topics that were deleted soon after a listing, and, for the latest time, new topics that were not read
    yet.
    """
    kept = []
    numbers = {topic.number for topic in later or ()}
    for topic in topics:
        own = [window for window in windows if window.topic == topic.number]
        if at_ms is None and len({window.partition for window in own}) < topic.partitions:
            warnings.append(f"topic {topic.name} is left out: it is new, and not all of it was read yet")
        elif at_ms is not None and later is not None and topic.number not in numbers and not _has(own, topic, at_ms):
            until = min([window.to_ms for window in own], default=None)
            restorable = f", and can be restored up to {chain.shown_time(until)}" if until is not None else ""
            warnings.append(f"topic {topic.name} is left out: it was deleted at about that time{restorable}")
        else:
            kept.append(topic)
    return tuple(kept)


def _has(windows: Sequence[Window], topic: Topic, at_ms: int) -> bool:
    return {window.partition for window in windows if window.has(at_ms)} >= set(range(topic.partitions))


def _parts(
    manifest: Manifest, windows: Mapping[tuple[int, int], Window], read: Callable[[int], Summary]
) -> dict[tuple[int, int], PartitionPart]:
    """Return the rows with which the windows begin. Raises NoBackup."""
    own = {(topic.number, part.partition): part for topic in manifest.topics for part in topic.partitions}
    summaries: dict[int, Mapping[tuple[int, int], PartitionPart]] = {chain.OF_MANIFEST: own}
    found = {}
    for topic_partition, window in windows.items():
        if window.base not in summaries:
            summaries[window.base] = read(window.base).bases
        part = summaries[window.base].get(topic_partition)
        if part is None or part.index != window.base_index:
            raise NoBackup(
                f"the rows of partition {window.partition} of topic {window.topic} are missing in their increment"
            )
        found[topic_partition] = part
    return found


def _replay() -> Any:
    """Return the module that replays partitions. Raises ConfigError if it is not installed."""
    try:
        from sandq.backup import replay
    except ImportError as error:
        raise ConfigError(
            "to restore increments, their entries are applied by the state machine of a node, which sandq-client does "
            f"not have: pip install sandq, or restore the backup without them (--base) ({error})"
        ) from None
    return replay


@asynccontextmanager
async def made_backup(
    location: Location,
    manifest: Manifest,
    key: BackupKey | None,
    moment: Moment,
    work: Path | None,
    on_progress: OnProgress,
) -> AsyncIterator[tuple[Directory, Manifest]]:
    """Make a temporary backup of a moment; yield its location and its manifest.

    `work`: parent of the temporary directory; None: the system's default.
    """
    replay = _replay()
    folder = await in_thread(partial(_folder, work), str(work or tempfile.gettempdir()))
    try:
        run = replay.Replay(location, manifest, key, moment.wanted, moment.at_ms)
        target, progress = Directory(folder / "backup"), Progress(len(moment.windows))
        steps = run.run(folder, target, moment.name)
        try:
            while (done := await in_thread(partial(_some, steps), location.shown)) is not None:
                progress.bytes_done += done
                progress.partitions_done = len(run.parts)
                on_progress(progress)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(steps.close, location.shown)
        made = replay.made_of(manifest, moment.name, moment.topics, run.parts, moment.level)
        await in_thread(partial(manifests.write, target, made, key), target.shown)
        yield target, made
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(partial(shutil.rmtree, folder, ignore_errors=True), str(folder))


def _folder(work: Path | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="sandq-restore-", dir=work))
    except OSError as error:
        where = work or tempfile.gettempdir()
        raise StorageFailed(f"{where}: {error.strerror}: the restored rows are built there") from None


def _some(steps: Iterator[int]) -> int | None:
    """Run some steps; return the number of bytes read, or None at the end."""
    done = 0
    for size in steps:
        done += size
        if done >= STEP_BYTES:
            return done
    return done or None
