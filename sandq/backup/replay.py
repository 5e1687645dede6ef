"""Make a backup as of a point in time: replay each partition's rows and entries with the state machine of the replicas.

The state machine runs on the machine that restores, and uses its disk. This requires the package `sandq`:
`sandq-client` has no state machine. Everything here blocks. Generators do long work in steps, so that a caller can
pause in between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgpack

from sandq.backup import chain, increments
from sandq.backup import manifest as manifests
from sandq.backup.chain import Entries, Topic, Window
from sandq.backup.errors import DamagedBackup, NoBackup
from sandq.backup.increments import IncrementReader
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Directory, Location
from sandq.backup.manifest import Manifest, PartitionPart, TopicPart
from sandq.backup.row_files import RowFiles
from sandq.backup.verify import Blocks
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.errors import Corruption, InvalidRequest, SandqError, StartupError, Unavailable
from sandq.partition.base import rows
from sandq.partition.commands import Entry
from sandq.partition.reader.look_aheads import LookAhead, LookAheads
from sandq.storage.keys import store_prefix
from sandq.storage.level_stores import LevelStores
from sandq.storage.snapshot import Exporter
from sandq.storage.stores import Stores

AT_ONCE: Final = 128
"""Number of partitions whose state is in memory at a time; the increments are read once for each such group."""
LOOK_AHEAD_BYTES: Final = 64 << 20
"""Maximum total size of the read-ahead buffers of all groups."""
WRITE_ENTRIES: Final = 64
"""Number of applied entries after which a partition's rows are written."""
WRITE_ROWS: Final = 1000
"""Number of changed rows after which a partition's rows are written."""
WRITE_BYTES: Final = 1 << 20
"""Bytes of changed rows after which a partition's rows are written."""
PIECE_ROWS: Final = 2048
"""Maximum number of rows in a block; the same as in blocks that nodes make."""
PIECE_BYTES: Final = 512 << 10
"""Maximum bytes of rows in a block; the same as in blocks that nodes make. A larger row is alone in its block."""
STAMP_BYTES: Final = 32
"""The time of an entry is within this number of its first bytes."""

_TopicPartition = tuple[int, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sources of a partition."""

    topic: Topic
    window: Window
    part: PartitionPart
    """The rows with which it begins."""

    @property
    def shown(self) -> str:
        return f"partition {self.window.partition} of topic {self.topic.name!r}"


class PartitionReplay:
    """The replay of one partition: its rows, then its entries one by one."""

    def __init__(
        self, stores: Stores, store: int, wanted: Wanted, look_aheads: LookAheads, last: int | None = None
    ) -> None:
        """`last`: index of the last entry to apply; None: `apply` compares the times of entries instead."""
        self.wanted = wanted
        self.is_over = False
        """True if the next entry is beyond the end of the replay."""
        self.late: int | None = None
        """Index of the last entry that belongs to the replay, although an earlier entry is already beyond the end of
        the replay. None if there is no such entry."""
        self._last = last
        self._stores = stores
        self._store = store
        self._look_aheads = look_aheads
        self._replica: PartitionReplica | None = None
        self._entries = 0
        self.term: int | None = None
        """Term of the last applied entry; None before the first."""

    def put_rows(self, block: bytes) -> None:
        """Store a block of rows."""
        flat = msgpack.unpackb(block)
        prefix = store_prefix(self._store)
        self._stores.write([(prefix + key, value) for key, value in zip(flat[::2], flat[1::2], strict=True)])

    def load(self) -> None:
        """Load the state after all rows were stored. Raises NoBackup if the rows are not the state after the expected
        entry."""
        topic, part = self.wanted.topic, self.wanted.part
        number = self.wanted.window.partition
        if self._stores.get(store_prefix(self._store) + rows.STATE_KEY) is None:
            raise NoBackup(f"the rows of {self.wanted.shown} have no state among them")
        self._replica = PartitionReplica(self._stores, self._store, 0, number, {}, topic.kind, self._look_aheads)
        if (failure := self._replica.failure) is not None:
            raise NoBackup(f"the rows of {self.wanted.shown} cannot be read: {failure.error}")
        if self.index != part.index:
            raise NoBackup(f"the rows of {self.wanted.shown} are as of entry {self.index}, not {part.index}")

    @property
    def replica(self) -> PartitionReplica:
        assert self._replica is not None, "its rows are not there yet"
        return self._replica

    @property
    def index(self) -> int:
        """Index of the last applied entry."""
        return self.replica.applied_index

    def apply(self, index: int, term: int, command: bytes, until_ms: int | None) -> bool:
        """Apply the next entry unless it is too late or was applied before; return whether it was applied now.

        Raises Corruption, StartupError.
        """
        if index <= self.index:
            return False
        self._check_over(index, command, until_ms)
        if self.is_over:
            return False
        self.term = term
        try:
            self.replica.apply(index, command, False)
        except SandqError:
            raise
        except Exception as error:
            raise NoBackup(
                f"entry {index} of {self.wanted.shown} cannot be applied: {type(error).__name__}: {error}; restore to "
                "an earlier moment, or with a version that can apply it"
            ) from error
        self.replica.digests_asked.clear()
        self._entries += 1
        replica = self.replica
        is_much = replica.unwritten >= WRITE_ROWS or replica.unwritten_bytes >= WRITE_BYTES
        if is_much or self._entries >= WRITE_ENTRIES:
            self.write()
        return True

    def _check_over(self, index: int, command: bytes, until_ms: int | None) -> None:
        """Set `is_over` if this entry is beyond the end of the replay. Set `late` if this entry
        belongs to the replay, but follows an entry beyond the end.

        The clock of a new leader may be behind that of the leader before it, so the times of entries may decrease.
        """
        if self._last is not None:
            self.is_over = index > self._last
        elif until_ms is not None and command:
            if _stamp_ms(command) > until_ms:
                self.is_over = True
            elif self.is_over:
                self.late = index

    def write(self) -> None:
        """Write the applied changes as rows."""
        self._stores.write(self.replica.drain())
        self._entries = 0

    def end(self, files: RowFiles) -> Generator[int, None, PartitionPart]:
        """Write the rows in the form of a backup; yield the size of each block, and return the partition's description.

        Raises InvalidRequest if no backup can be made of this moment.
        """
        self.write()
        machine = self.replica.machine
        try:
            machine.check_available()
        except Unavailable:
            raise InvalidRequest(
                f"{self.wanted.shown} cannot be restored as of then: its clock was being set back; choose another time"
            ) from None
        with_index = self.index, machine.now_ms, machine.shared.level
        snapshot = self._stores.snapshot()
        try:
            exporter, after, is_last = Exporter(snapshot, self._store), None, False
            while not is_last:
                flat, is_last = exporter.rows(after, PIECE_ROWS, PIECE_BYTES)
                after = flat[-2] if flat else after
                block = msgpack.packb(flat)
                files.write(block)
                yield len(block)
            files.end()
        except BaseException:
            files.give_up()
            raise
        finally:
            snapshot.close()
        return PartitionPart(self.wanted.window.partition, *with_index, tuple(files.parts))


class Replay:
    """The creation of one backup as of a point in time."""

    def __init__(
        self,
        location: Location,
        manifest: Manifest,
        key: BackupKey | None,
        wanted: Sequence[Wanted],
        until_ms: int | None,
    ) -> None:
        self._location = location
        self._manifest = manifest
        self._key = key
        self._wanted = wanted
        self._until_ms = until_ms
        self.parts: dict[tuple[int, int], PartitionPart] = {}
        """The finished partitions, by topic and partition."""
        self.entries = 0
        """Number of applied entries."""

    def run(self, work: Path, target: Directory, backup_id: str) -> Iterator[int]:
        """Write the rows of all partitions in the form of a backup to `target`, with temporary files at `work`.

        Yields the number of bytes read from time to time. Raises DamagedBackup, NoBackup, InvalidRequest.
        """
        for at in range(0, len(self._wanted), AT_ONCE):
            some = self._wanted[at : at + AT_ONCE]
            late = yield from self._some(work / f"replay-{at:06}", some, target, backup_id, {})
            if late:
                some = [one for one in some if one.window.topic_partition in late]
                yield from self._some(work / f"again-{at:06}", some, target, backup_id, late)

    def _some(
        self,
        folder: Path,
        wanted: Sequence[Wanted],
        target: Directory,
        backup_id: str,
        lasts: Mapping[_TopicPartition, int],
    ) -> Generator[int, None, dict[_TopicPartition, int]]:
        """Make some partitions. `lasts`: index of the last entry to apply, for the partitions for which it is known.

        Returns the last entries of partitions that must be made again. Their entries were not ordered by time, because
        the leader's clock was ahead for a while, or because the leader changed.
        """
        stores = LevelStores(folder)
        try:
            return (yield from self._replayed(wanted, stores, target, backup_id, lasts))
        finally:
            stores.close()

    def _replayed(
        self,
        wanted: Sequence[Wanted],
        stores: LevelStores,
        target: Directory,
        backup_id: str,
        lasts: Mapping[_TopicPartition, int],
    ) -> Generator[int, None, dict[_TopicPartition, int]]:
        look_aheads = LookAheads(LOOK_AHEAD_BYTES)
        replays: dict[tuple[int, int], PartitionReplay] = {}
        for store, one in enumerate(wanted, 1):
            replays[one.window.topic_partition] = made = PartitionReplay(
                stores, store, one, look_aheads, lasts.get(one.window.topic_partition)
            )
            yield from self._load(made)
        numbers = self._numbers(wanted)
        before = b""
        for number in numbers:
            reader = IncrementReader(self._location, self._manifest.backup_id, number, self._key)
            try:
                for found in reader.entries():
                    replay = replays.get((found.topic, found.partition))
                    if replay is not None and replay.wanted.window.stands_in(number):
                        self._apply(replay, found, reader)
                    look_aheads.evict(partial(_readers, replays))
                    yield sum(map(len, found.entries[1::2]))
            finally:
                reader.close()
            summary = reader.summary
            assert summary is not None
            if number != numbers[0] and summary.previous != before:
                raise reader.wrong(f"it follows a different increment than {chain.name_of(number - 1)}")
            before = reader.digest
        late = {topic_partition: replay.late for topic_partition, replay in replays.items() if replay.late is not None}
        for topic_partition, replay in replays.items():
            if topic_partition in late:
                continue
            window = replay.wanted.window
            if replay.index < window.index and not replay.is_over:
                raise DamagedBackup(
                    f"{self._location.shown}/{self._manifest.backup_id}/{chain.FOLDER}",
                    0,
                    f"entries {replay.index + 1} to {window.index} of {replay.wanted.shown} are missing",
                )
            folder = f"data/{replay.wanted.topic.name}/{window.partition}"
            self.parts[topic_partition] = yield from replay.end(RowFiles(target, backup_id, folder, self._key))
        return late

    def _numbers(self, wanted: Sequence[Wanted]) -> range:
        """Return the range of increments that have entries of these partitions."""
        behind = [one.window for one in wanted if one.window.index > one.window.base_index]
        if not behind:
            return range(0)
        last = increments.count(self._location, self._manifest.backup_id)
        ends = [last if window.last is None else window.last + 1 for window in behind]
        return range(min([window.first for window in behind]), min(last, max(ends)))

    def _load(self, replay: PartitionReplay) -> Iterator[int]:
        blocks = Blocks(self._location, self._manifest, replay.wanted.part, self._key)
        try:
            try:
                while found := blocks.take(1):
                    replay.put_rows(found[0])
                    yield len(found[0])
            finally:
                blocks.close()
            replay.load()
        except SandqError:
            raise
        except Exception as error:
            raise NoBackup(f"the rows of {replay.wanted.shown} are not those of a partition: {error!r:.200}") from error

    def _apply(self, replay: PartitionReplay, found: Entries, reader: IncrementReader) -> None:
        window = replay.wanted.window
        if found.first > replay.index + 1 and not replay.is_over and found.first <= window.index:
            raise reader.wrong(
                f"entries {replay.index + 1} to {found.first - 1} of {replay.wanted.shown} are missing: "
                f"{found.first} is the next one"
            )
        if found.first == replay.index + 1 and replay.term not in (None, found.term_before):
            raise reader.wrong(
                f"entry {found.first} of {replay.wanted.shown} follows an entry of term {found.term_before}, but the "
                f"one before it here is of term {replay.term}: they belong to different histories"
            )
        try:
            for index, term, command in found.pairs():
                if index > window.index:
                    break
                self.entries += replay.apply(index, term, command, self._until_ms)
        except StartupError as error:
            kind = reader.wrong if isinstance(error, Corruption) else NoBackup
            raise kind(f"an entry of {replay.wanted.shown} cannot be applied: {error.message}") from error
        except SandqError:
            raise
        except Exception as error:
            raise reader.wrong(f"an entry of {replay.wanted.shown} cannot be applied: {error!r:.200}") from error


def _stamp_ms(command: bytes) -> int:
    """Return the time of an entry, by its leader's clock. Raises Corruption."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(command[:STAMP_BYTES])
    try:
        unpacker.read_array_header()
        unpacker.skip()
        return int(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException):
        return Entry.decode(command).now_ms  # raises an error that describes the mistake


def _readers(replays: Mapping[tuple[int, int], PartitionReplay]) -> list[LookAhead]:
    return [reader for replay in replays.values() for reader in replay.replica.machine.groups.readers()]


def made_of(
    manifest: Manifest,
    backup_id: str,
    topics: Sequence[Topic],
    parts: Mapping[tuple[int, int], PartitionPart],
    level: int,
) -> Manifest:
    """Return the manifest of the backup that the replay makes."""
    made = [
        TopicPart(
            topic.name,
            topic.number,
            topic.kind,
            topic.initial_partitions,
            topic.replicas,
            dict(topic.settings),
            topic.owner,
            tuple(parts[topic.number, partition] for partition in range(topic.partitions)),
        )
        for topic in topics
    ]
    return Manifest(
        backup_id=backup_id,
        kind=manifests.FULL,
        cluster=manifest.cluster,
        cluster_uuid=manifest.cluster_uuid,
        version=manifest.version,
        feature_level=max(level, manifest.feature_level),
        begun_ms=manifest.begun_ms,
        ended_ms=max([part.time_ms for part in parts.values()], default=manifest.ended_ms),
        topics=tuple(made),
        access=manifest.access,
        warnings=(),
        key_id=manifest.key_id,
    )
