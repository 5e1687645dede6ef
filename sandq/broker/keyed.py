"""The keys of compacted topics, as they are asked about and watched."""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model.errors import InvalidRequest
from sandq.model.settings import COMPACTED
from sandq.partition.changes import Changes, Watch
from sandq.partition.view import Row

from .broker import Broker
from .reading import Question, T


class Keyed:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def get(
        self, topic: str, partition: int, stale: bool, keys: Sequence[bytes], max_bytes: int
    ) -> tuple[list[bytes | None], int]:
        """As `PartitionReplica.values`; and how old that is (ms)."""
        now_ms = self._broker.clock.now_ms
        return await self._ask(topic, partition, stale, lambda replica: replica.values(keys, now_ms(), max_bytes))

    async def scan(
        self, topic: str, partition: int, stale: bool, start: bytes, stop: bytes | None, limit: int, max_bytes: int
    ) -> tuple[tuple[list[Row], bytes | None], int]:
        """As `PartitionReplica.scan`; and how old that is (ms)."""
        now_ms = self._broker.clock.now_ms
        return await self._ask(
            topic, partition, stale, lambda replica: replica.scan(start, stop, limit, max_bytes, now_ms())
        )

    async def changes(
        self, topic: str, partition: int, watch: Watch, max_messages: int, max_bytes: int, wait_ms: int
    ) -> Changes:
        """As `Watching.changes`."""
        self._check_kind(topic)
        host = self._broker.partition(topic, partition).host
        return await self._broker.watching.changes(host, watch, max_messages, max_bytes, wait_ms / 1000)

    async def _ask(self, topic: str, partition: int, stale: bool, question: Question[T]) -> tuple[T, int]:
        self._check_kind(topic)
        host, reading = self._broker.partition(topic, partition).host, self._broker.reading
        return await reading.ask_stale(host, question) if stale else (await reading.ask(host, question), 0)

    def _check_kind(self, topic: str) -> None:
        kind = self._broker.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
