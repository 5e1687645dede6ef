"""Provide brokers for planning: topics whose partitions are lists of offsets, with a closed time that a test moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sandq.errors import Conflict, UnknownTopic
from sandq.model import offsets
from sandq.model.names import TIMER
from sandq.protocol.requests_log import MeasureReply
from sandq.spark.source.brokers import TopicInfo
from sandq.spark.source.options import Topics
from sandq.spark.source.positions import TopicPartition

MS = 1_700_000_000_000
K = TypeVar("K")
V = TypeVar("V")


def at(ms: int, place: int = 0, partition: int = 0) -> bytes:
    """Return an offset `ms` milliseconds after MS."""
    return offsets.pack(MS + ms, 1, place, partition)


def instant(ms: int) -> bytes:
    """Return the smallest offset with the time MS + `ms`."""
    return offsets.pack(MS + ms, 0, 0, 0)


@dataclass
class FakeLog:
    rows: list[bytes] = field(default_factory=list)
    trimmed: bytes = offsets.FIRST
    clock_epoch: int = 0
    behind_ms: int = 0
    """Lag of this partition's closed time behind the closed time of the other partitions, in ms."""


@dataclass
class FakeTopic:
    number: int
    logs: list[FakeLog]
    kind: str = TIMER


class FakeBrokers:
    """Replaces `ClientBrokers` in tests of planning."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.closed_ms = 0
        self.holds: dict[tuple[str, int], bytes] = {}
        """Offset of each hold, by the name of the hold and the partition. All topics share them."""
        self.held = 0
        self.refuses_holds = False
        self.cluster = "the cluster"
        self.step = 1000
        """Maximum number of messages that one answer counts."""
        self._numbers = 0

    def add(self, name: str, partitions: int = 1, kind: str = TIMER) -> FakeTopic:
        self._numbers += 1
        self.topics[name] = FakeTopic(self._numbers, [FakeLog() for _ in range(partitions)], kind)
        return self.topics[name]

    def append(self, name: str, ms: int, count: int = 1, partition: int = 0) -> None:
        """Append messages with the same delivery time."""
        rows = self.topics[name].logs[partition].rows
        first = sum(offsets.deliver_ms(row) == MS + ms for row in rows)
        rows += [at(ms, first + place, partition) for place in range(count)]
        rows.sort()

    def trim(self, name: str, below: bytes, partition: int = 0) -> None:
        log = self.topics[name].logs[partition]
        gone = bisect_left(log.rows, below)
        if gone:
            log.trimmed = log.rows[gone - 1]
            del log.rows[:gone]

    # -- requests of planning -------------------------------------------------------------------------------------

    def partitions(self, topics: Topics) -> dict[TopicPartition, TopicInfo]:
        for name in topics.names or topics.assigned:
            if name not in self.topics:
                raise UnknownTopic(f"no topic {name!r}")
        return {
            TopicPartition(topic.number, partition): TopicInfo(name, topic.kind)
            for name, topic in self.topics.items()
            for partition in range(len(topic.logs))
            if topics.wants(name, partition)
        }

    def measure(
        self,
        tp: TopicPartition,
        topic: str,
        start: bytes,
        end: bytes | None,
        most: int | None = None,
        pending: bool = False,
    ) -> MeasureReply:
        log = self.topics[topic].logs[tp.partition]
        closed_ms = self.closed_ms - log.behind_ms
        stop = offsets.LAST if pending else instant(closed_ms)
        stop = stop if end is None else min(stop, end)
        rows = [row for row in log.rows if start <= row < stop]
        count = len(rows)
        following = None
        if most is not None and count > most:
            count = min(most, self.step)
            following = offsets.behind(rows[count - 1])
        closed_ms += MS
        first = rows[0] if rows else None
        return MeasureReply(first, following, count, closed_ms, log.trimmed, tp.number, log.clock_epoch)

    def hold(self, topic: str, name: str, offsets: Mapping[int, bytes], ttl_ms: int) -> None:
        if self.refuses_holds:
            raise Conflict("too many holds")
        self.held += 1
        self.holds |= {(name, partition): offset for partition, offset in offsets.items()}

    def all(self, work: Callable[[K], V], items: Iterable[K]) -> list[V]:
        return [work(item) for item in items]
