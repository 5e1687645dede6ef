"""Reads of the keys of compacted topics, linearizable: what they answer is at least as late as everything that was
acknowledged before they were asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sandq.model.errors import InvalidRequest
from sandq.model.settings import COMPACTED
from sandq.partition.view import Row

from .broker import Broker
from .replica import PartitionReplica

T = TypeVar("T")


class Keyed:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def get(self, topic: str, partition: int, keys: Sequence[bytes], max_bytes: int) -> list[bytes | None]:
        """As `PartitionReplica.values`."""
        now_ms = self._broker.clock.now_ms
        return await self._ask(topic, partition, lambda replica: replica.values(keys, now_ms(), max_bytes))

    async def scan(
        self, topic: str, partition: int, start: bytes, stop: bytes | None, limit: int, max_bytes: int
    ) -> tuple[list[Row], bytes | None]:
        """As `PartitionReplica.scan`."""
        now_ms = self._broker.clock.now_ms
        return await self._ask(topic, partition, lambda replica: replica.scan(start, stop, limit, max_bytes, now_ms()))

    async def _ask(self, topic: str, partition: int, question: Callable[[PartitionReplica], T]) -> T:
        kind = self._broker.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
        host = self._broker.partition(topic, partition).host
        await host.read()
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        return await self._broker.ask(lambda: question(replica))
