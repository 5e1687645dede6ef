"""Read a backup with its increments: verify that they are consecutive and, on request, that they can be replayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sandq.backup import chain, increments
from sandq.backup.chain import Continuity, Summary
from sandq.backup.follow import topics_at
from sandq.backup.increments import IncrementReader
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest, PartitionPart
from sandq.backup.point_in_time import find_moment, made_backup
from sandq.backup.verify import check_settings, verify_backup, verify_parts
from sandq.backup.work import AT_ONCE, OnProgress, Progress, in_thread


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """The result of a verification."""

    manifest: Manifest
    increments: int
    spans: list[tuple[int, int]]
    """Time spans, in epoch milliseconds, for which everything can be restored."""
    replayed: int | None = None
    """Number of partitions that were replayed; None if it was not requested."""

    def shown(self) -> dict[str, Any]:
        """Return the result as JSON."""
        found = {"increments": self.increments, "spans": [list(span) for span in self.spans], "replayed": self.replayed}
        return {**self.manifest.shown(), **found}


async def verify_chain(
    location: Location,
    backup_id: str,
    *,
    replay: bool = False,
    work: Path | None = None,
    key: BackupKey | None = None,
    at_once: int = AT_ONCE,
    on_progress: OnProgress = lambda progress: None,
) -> VerifiedChain:
    """Read a backup and all of its increments, and verify that nothing is missing between them.

    `replay`: apply them as a restore does. `work`: parent of the temporary directory for the replay. Raises NoBackup;
    DamagedBackup with the file and the byte; WrongKey; ConfigError if the package for the replay is not installed.
    """
    manifest = await verify_backup(location, backup_id, key=key, at_once=at_once, on_progress=on_progress)
    there = await in_thread(partial(increments.count, location, backup_id), location.shown)
    if not there:
        return VerifiedChain(manifest, 0, [])
    last, parts = await _verify_increments(location, manifest, there, key, on_progress)
    topics = await in_thread(partial(topics_at, location, manifest, last, key), location.shown)
    check_settings(location, manifest, topics)
    kinds = {topic.number: topic.kind for topic in topics}  # a topic that was deleted since is missing here
    with_kinds = [(part, kinds.get(number)) for number, part in parts]
    await verify_parts(location, manifest, with_kinds, key, at_once, on_progress)
    replayed = None
    if replay:
        moment = await in_thread(partial(find_moment, location, manifest, key, None, None), location.shown)
        async with made_backup(location, manifest, key, moment, work, on_progress) as (_, made):
            replayed = len(made.parts)
    return VerifiedChain(manifest, there, chain.spans(topics, last.windows), replayed)


async def _verify_increments(
    location: Location, manifest: Manifest, there: int, key: BackupKey | None, on_progress: OnProgress
) -> tuple[Summary, list[tuple[int, PartitionPart]]]:
    """Verify all increments; return the last summary, and the rows of all increments with the number of their topic."""
    continuity, progress = Continuity(manifest), Progress(there)
    parts: list[tuple[int, PartitionPart]] = []
    for number in range(there):
        check = partial(_verify, location, manifest.backup_id, number, key, continuity)
        summary, size = await in_thread(check, location.shown)
        parts += [(topic, part) for (topic, _), part in summary.bases.items()]
        progress.partitions_done += 1
        progress.bytes_done += size
        on_progress(progress)
    return summary, parts


def _verify(
    location: Location, backup_id: str, number: int, key: BackupKey | None, continuity: Continuity
) -> tuple[Summary, int]:
    reader = IncrementReader(location, backup_id, number, key)
    try:
        size = 0
        for found in reader.entries():
            if (why := continuity.check_entries(found)) is not None:
                raise reader.wrong(why)
            size += sum(map(len, found.entries[1::2]))
        assert reader.summary is not None
        if (why := continuity.check_end(reader.summary, reader.digest)) is not None:
            raise reader.wrong(why)
        return reader.summary, size
    finally:
        reader.close()
