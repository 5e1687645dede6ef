"""The keys of compacted topics, as they are asked about and watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sandq.broker.broker import Broker
from sandq.broker.queries.partition_time import PartitionTime
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.errors import InvalidRequest
from sandq.model.settings import COMPACTED
from sandq.partition.kv.changes import Changes, Watch
from sandq.partition.view import Row

T = TypeVar("T")


class KvQueries:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._time = PartitionTime(broker.clock)

    async def get(
        self, topic: str, partition: int, stale: bool, each: Sequence[Sequence[bytes]], max_bytes: int
    ) -> tuple[list[list[bytes | None]], int]:
        """As `PartitionReplica.values`, of each of these; and how old that is (ms)."""
        return await self._ask(
            topic,
            partition,
            stale,
            lambda replica, now_ms: [replica.values(keys, max_bytes, now_ms) for keys in each],
            len(each),
        )

    async def scan(
        self, topic: str, partition: int, stale: bool, start: bytes, stop: bytes | None, limit: int, max_bytes: int
    ) -> tuple[tuple[list[Row], bytes | None], int]:
        """As `PartitionReplica.scan`; and how old that is (ms)."""
        return await self._ask(
            topic, partition, stale, lambda replica, now_ms: replica.scan(start, stop, limit, max_bytes, now_ms)
        )

    async def changes(
        self, topic: str, partition: int, watch: Watch, max_messages: int, max_bytes: int, wait_ms: int
    ) -> Changes:
        """As `KvWatches.changes`."""
        self._check_kind(topic)
        host = self._broker.partition(topic, partition).host
        return await self._broker.kv_watches.changes(host, watch, max_messages, max_bytes, wait_ms / 1000)

    async def _ask(
        self,
        topic: str,
        partition: int,
        stale: bool,
        question: Callable[[PartitionReplica, int], T],
        requests: int = 1,
    ) -> tuple[T, int]:
        self._check_kind(topic)
        host, reads, clock = self._broker.partition(topic, partition).host, self._broker.reads, self._broker.clock
        if stale:
            return await reads.ask_stale(host, lambda replica: question(replica, clock.now_ms()), requests)
        await self._time.advance_for_values(host)
        return await reads.ask(host, lambda replica: question(replica, 0), requests), 0

    def _check_kind(self, topic: str) -> None:
        kind = self._broker.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
