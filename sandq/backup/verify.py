"""Read a whole backup, without a cluster: verify that each block is present, unchanged and at its position.

Settings and rows are checked as a node checks them during a restore.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final

from sandq.backup import manifest as manifests
from sandq.backup.chain import Topic
from sandq.backup.errors import DamagedBackup, NoBackup
from sandq.backup.file_format import Reader
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest, PartitionPart, TopicPart
from sandq.backup.work import AT_ONCE, OnProgress, Progress, in_thread, several
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.settings import CLASSES
from sandq.model.stored_rows import check_rows, decode_chunk
from sandq.model.stored_settings import checked_record

STEP_BLOCKS: Final = 16


class Blocks:
    """The chunks of rows of a partition, over all of its files. Blocking; for one thread at a time."""

    def __init__(self, location: Location, manifest: Manifest, part: PartitionPart, key: BackupKey | None) -> None:
        self._blocks = _blocks(location, manifest, part, key)

    def take(self, most: int) -> list[bytes]:
        """Return the next chunks; [] at the end. Raises DamagedBackup."""
        found = []
        for block in self._blocks:
            found.append(block)
            if len(found) == most:
                break
        return found

    def close(self) -> None:
        """Close the open file."""
        self._blocks.close()


def _blocks(
    location: Location, manifest: Manifest, part: PartitionPart, key: BackupKey | None
) -> Generator[bytes, None, None]:
    for file in part.files:
        path = f"{manifest.backup_id}/{file.name}"
        shown = f"{location.shown}/{path}"
        try:
            stream = location.open(path)
        except NoBackup:
            raise DamagedBackup(shown, 0, "the file is missing") from None
        with stream:
            reader = Reader(stream, manifest.backup_id, file.name, key, shown)
            blocks = size = 0
            for block in reader.blocks():
                blocks += 1
                size += len(block)
                yield block
            if (blocks, size, reader.at) != (file.blocks, file.plain_bytes, file.bytes):
                raise DamagedBackup(shown, reader.at, "the file differs from its description in the manifest")


async def verify_backup(
    location: Location,
    backup_id: str,
    *,
    key: BackupKey | None = None,
    at_once: int = AT_ONCE,
    on_progress: OnProgress = lambda progress: None,
) -> Manifest:
    """Read a whole backup and return its manifest. Raises NoBackup; DamagedBackup with the file and the byte;
    WrongKey."""
    manifest = await in_thread(lambda: manifests.read(location, backup_id, key), location.shown)
    manifests.check_level(manifest)
    await verify_topics(location, manifest, manifest.topics, key, at_once, on_progress)
    return manifest


async def verify_topics(
    location: Location,
    manifest: Manifest,
    topics: Sequence[TopicPart],
    key: BackupKey | None,
    at_once: int,
    on_progress: OnProgress,
) -> None:
    """Verify some topics of a backup. Raises the errors of `verify_backup`."""
    check_settings(location, manifest, topics)
    parts = [(part, topic.kind) for topic in topics for part in topic.partitions]
    await verify_parts(location, manifest, parts, key, at_once, on_progress)


async def verify_parts(
    location: Location,
    manifest: Manifest,
    parts: Sequence[tuple[PartitionPart, str | None]],
    key: BackupKey | None,
    at_once: int,
    on_progress: OnProgress,
) -> None:
    """Verify some partitions, each with the kind of its topic (None if unknown). Raises the errors of
    `verify_backup`."""
    progress = Progress(len(parts), 0, sum([part.plain_bytes for part, _ in parts]))

    async def one(item: tuple[PartitionPart, str | None]) -> None:
        part, kind = item
        blocks = Blocks(location, manifest, part, key)
        name = part.files[0].name if part.files else manifests.MANIFEST
        is_first = True
        try:
            while found := await in_thread(partial(blocks.take, STEP_BLOCKS), location.shown):
                file = f"{location.shown}/{manifest.backup_id}/{name}"
                for block in found:
                    await in_thread(partial(_check_rows, block, file, part, kind), location.shown)
                is_first = False
                progress.bytes_done += sum(map(len, found))
                on_progress(progress)
        finally:
            await in_thread(blocks.close, location.shown)
        if is_first:
            raise DamagedBackup(f"{location.shown}/{manifest.backup_id}/{name}", 0, "a partition without rows")
        progress.partitions_done += 1
        on_progress(progress)

    await several(one, parts, at_once)


def check_settings(location: Location, manifest: Manifest, topics: Sequence[TopicPart | Topic]) -> None:
    """Check the settings of each topic as its creation would. Raises DamagedBackup."""
    file = f"{location.shown}/{manifest.backup_id}/{manifests.MANIFEST}"
    for topic in topics:
        if topic.kind not in CLASSES:
            raise DamagedBackup(file, 0, f"topic {topic.name}: there is no kind {topic.kind!r:.40}")
        try:
            checked_record(topic.settings, topic.kind)
        except InvalidSetting as error:
            raise DamagedBackup(file, 0, f"the settings of topic {topic.name}: {error.message}") from None


def _check_rows(block: bytes, file: str, part: PartitionPart, kind: str | None) -> None:
    """Check each row as a node does during a restore. Raises DamagedBackup."""
    try:
        if kind is None:
            decode_chunk(block)
        else:
            check_rows(block, part.partition, kind)
    except InvalidRequest as error:
        raise DamagedBackup(file, 0, error.message) from None
