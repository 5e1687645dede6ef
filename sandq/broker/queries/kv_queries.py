"""The keys of compacted topics, as they are asked about and watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from sandq.broker.broker import Broker
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.errors import InvalidRequest, Overloaded, StorageFailed
from sandq.model.names import COMPACTED
from sandq.partition import commands as c
from sandq.partition.kv.changes import Changes, Watch
from sandq.partition.view import Row

T = TypeVar("T")


class KvQueries:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

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
        await self._tell_the_time(host)
        return await reads.ask(host, lambda replica: question(replica, 0), requests), 0

    async def _tell_the_time(self, host: RaftGroup) -> None:
        """A value is gone for readers when it is for who swaps it: by the time in the log. By the clock a reader would
        see it gone before a swap of it that is under way, and stands before its end, succeeds."""
        status, now_ms = host.status, self._broker.clock.now_ms()
        if status.keys_expire_ms is not None and status.now_ms < now_ms >= status.keys_expire_ms:
            with suppress(Overloaded, StorageFailed):  # reading goes on without it
                await host.call(c.Clock())

    def _check_kind(self, topic: str) -> None:
        kind = self._broker.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
