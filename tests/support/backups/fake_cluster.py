"""Provide a fake cluster for tests of backups: partitions in memory, their logs, and the requests of a backup."""

from __future__ import annotations

from typing import Any

from sandq.client.backups import LogPiece, Piece
from sandq.model.errors import NotFound, Unavailable, UnknownTopic
from sandq.model.features import KNOWN
from sandq.model.names import TIMER
from sandq.partition import commands as c
from sandq.partition.restore.restoring import encode_chunk
from tests.support.partition.bench import Bench, T
from tests.support.partition.restore_bench import rows_of

TERM = 3
PIECE_ENTRIES = 2
"""Number of entries in one reply: small, so that a log needs several replies."""


class FakePartition:
    """A partition whose log begins after the entry at `first`."""

    def __init__(self, number: int, at: int) -> None:
        self.bench = bench = Bench()
        bench.machine = bench.machine_class.load(number, bench.settings, bench.view, bench.look_aheads)
        self.first = 0
        self.term = TERM
        self.log: dict[int, tuple[int, bytes]] = {0: (0, b"")}
        self.pins: list[int] = []
        self.used = 0.5
        """Used share of the log that is kept for readers."""
        self.is_away = False
        apply = self.bench.apply

        def logged(at: int, *commands: c.Command) -> list[Any]:
            results = apply(at, *commands)
            self.log[self.bench.index] = self.term, c.Entry(T + at, commands).encode()
            return results

        self.bench.apply = logged  # type: ignore[method-assign]
        self.bench.apply(at, c.Touch(()))

    def put(self, value: str, at: int) -> None:
        """Append a message that is due an hour later."""
        self.bench.append(value, at=at, due=[at + 3_600_000])

    def cut(self) -> None:
        """Remove all entries of the log."""
        self.first = self.bench.index


class FakeCluster:
    """Replaces both the client and its `BackupTransfer`."""

    def __init__(self) -> None:
        self.at = 0
        """Time of the cluster, in ms after T."""
        self.topics: dict[str, dict[str, Any]] = {}
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        self.uuid = "u"
        self._made = 0
        self._exports: dict[int, list[bytes]] = {}

    def make(self, name: str, partitions: int = 1) -> None:
        self._made += 1
        for number in range(partitions):
            self.partitions[name, number] = FakePartition(number, self.at)
        settings = self.partitions[name, 0].bench.settings
        self.topics[name] = {
            "name": name,
            "number": self._made,
            "kind": TIMER,
            "partitions": partitions,
            "initial_partitions": partitions,
            "replicas": 1,
            "settings": settings,
            "created_ms": T + self.at,
            "owner": None,
        }

    def delete(self, name: str) -> None:
        for number in range(self.topics.pop(name)["partitions"]):
            del self.partitions[name, number]

    def put(self, topic: str, value: str, partition: int = 0) -> None:
        self.at += 1000
        self.partitions[topic, partition].put(value, self.at)

    def _partition(self, topic: str, number: int) -> FakePartition:
        if topic not in self.topics:
            raise UnknownTopic(f"there is no topic {topic!r}", topic=topic)
        found = self.partitions[topic, number]
        if found.is_away:
            raise Unavailable("nobody leads it")
        return found

    # -- as `BackupTransfer` --------------------------------------------------------------------------------------

    async def catalog(self) -> dict[str, Any]:
        return {
            "cluster": "c",
            "cluster_uuid": self.uuid,
            "version": "0",
            "feature_level": KNOWN.highest,
            "time_ms": T + self.at,
            "topics": [self.topics[name] for name in sorted(self.topics)],
            "hidden": 0,
        }

    async def begin(self, topic: str, partition: int) -> dict[str, Any]:
        bench = self._partition(topic, partition).bench
        export = len(self._exports)
        self._exports[export] = [part for row in rows_of(bench) for part in row]
        machine = bench.machine
        return {
            "export": export,
            "index": bench.index,
            "time_ms": machine.now_ms,
            "level": machine.shared.level,
            "bytes": 1,
        }

    async def read(self, topic: str, partition: int, export: int, after: bytes | None) -> Piece:
        if export not in self._exports:
            raise NotFound("the rows are not kept")
        return Piece(b"x", True, encode_chunk(self._exports[export]))

    async def end(self, topic: str, partition: int, export: int) -> None:
        self._exports.pop(export, None)

    async def pin_log(self, topic: str, partition: int, reader: str, pin: int | None) -> LogPiece:
        return await self.read_log(topic, partition, reader, pin, None, None, 0)

    async def read_log(
        self,
        topic: str,
        partition: int,
        reader: str,
        pin: int | None,
        after: int | None,
        term: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> LogPiece:
        found = self._partition(topic, partition)
        last = found.bench.index
        found.pins.append(last if pin is None else pin)
        after = last if after is None else after
        time_ms = T + self.at
        if after < found.first:
            return LogPiece("its log begins later", last, time_ms, 0, found.used, [])
        if after > last or (term is not None and found.log[after][0] != term):
            return LogPiece("its log has another history", last, time_ms, 0, found.used, [])
        stop = min(last, after + PIECE_ENTRIES) if max_bytes else after
        entries = [part for index in range(after + 1, stop + 1) for part in found.log[index]]
        return LogPiece(None, last, time_ms, found.log[after][0], found.used, entries)
