"""The keys of compacted topics, as they are asked about and watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sandq.broker.broker import Broker
from sandq.broker.queries.partition_time import PartitionTime
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.caller import Caller
from sandq.model.errors import InvalidRequest
from sandq.model.names import COMPACTED
from sandq.partition.kv.watch import Changes, Watch
from sandq.partition.view import Row
from sandq.protocol.requests_keys import ANSWER_BYTES, KvGet, KvScan, KvWatch

T = TypeVar("T")


class KvQueries:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._time = PartitionTime(broker.clock)

    async def get(self, requests: Sequence[KvGet], caller: Caller) -> tuple[list[list[bytes | None]], int]:
        """As `PartitionReplica.values`, for each of these requests to one partition, all stale or none of them; and
        how old that is (ms)."""
        return await self._ask(
            requests[0],
            lambda replica, now_ms: [replica.values(request.keys, ANSWER_BYTES, now_ms) for request in requests],
            len(requests),
        )

    async def scan(self, request: KvScan, caller: Caller) -> tuple[tuple[list[Row], bytes | None], int]:
        """As `PartitionReplica.scan`; and how old that is (ms)."""
        return await self._ask(
            request,
            lambda replica, now_ms: replica.scan(request.start, request.stop, request.limit, request.max_bytes, now_ms),
        )

    async def changes(self, request: KvWatch, caller: Caller) -> Changes:
        """As `KvWatches.changes`."""
        watch = Watch(request.after, request.mark, request.every, request.start, request.stop)
        host = self._host(request)
        return await self._broker.kv_watches.changes(
            host, watch, request.max_messages, request.max_bytes, request.wait_ms / 1000
        )

    async def _ask(
        self, request: KvGet | KvScan, question: Callable[[PartitionReplica, int], T], requests: int = 1
    ) -> tuple[T, int]:
        host, reads, clock = self._host(request), self._broker.reads, self._broker.clock
        if request.stale:
            return await reads.ask_stale(host, lambda replica: question(replica, clock.now_ms()), requests)
        await self._time.advance_for_values(host)
        return await reads.ask(host, lambda replica: question(replica, 0), requests), 0

    def _host(self, request: KvGet | KvScan | KvWatch) -> RaftGroup:
        """The group of the partition that a request is about. InvalidRequest unless its topic has keys."""
        topic = request.topic
        kind = self._broker.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
        return self._broker.partition(topic, request.partition).host
