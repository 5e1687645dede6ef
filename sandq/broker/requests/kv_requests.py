"""The keys of compacted topics, as they are asked about and watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, TypeVar

from sandq.broker.broker import Broker
from sandq.broker.reads.linearizable_reads import PAGE_WORK, Room
from sandq.broker.reads.partition_time import PartitionTime
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.caller import Caller
from sandq.model.errors import BELONGS_TO, InvalidRequest
from sandq.model.names import COMPACTED
from sandq.model.partitioning import KeyPartitions
from sandq.partition.kv.watch import Changes, Watch
from sandq.protocol.requests_keys import ANSWER_BYTES, KvGet, KvScan, KvWatch, pack_rows

T = TypeVar("T")
KEYS_MOST: Final = 2048
"""Of one answer: the rest is asked for again."""
KEYS_OF_WORK: Final = 8
"""That cost as much to look up as one message."""


class KeyPage(NamedTuple):
    """Keys and their values, of one instant."""

    keys: int
    rows: list[bytes]
    """As an answer has them: `pack_rows`, of some in each part."""
    size: int
    """Bytes of that."""
    following: bytes | None
    """The key to go on from; None: there are no more."""


class KvRequests:
    def __init__(self, broker: Broker, room: Room) -> None:
        """`room`: where the answers go."""
        self._broker = broker
        self._room = room
        self._time = PartitionTime(broker.clock)

    async def get(self, requests: Sequence[KvGet], caller: Caller) -> tuple[list[list[bytes | None]], int]:
        """As `PartitionReplica.values`, for the first of these requests to one partition, all stale or none of them:
        one at least, up to the one that reaches `ANSWER_BYTES`; and how old that is (ms). Each has passed
        `check_places`."""
        (found, _), stale_ms = await self._ask(
            requests[0],
            lambda replica, now_ms: _values(replica, requests, now_ms),
            itemgetter(1),
            1 + sum([len(request.keys) for request in requests]) // KEYS_OF_WORK,
            len(requests),
        )
        return found, stale_ms

    async def scan(self, request: KvScan, caller: Caller) -> tuple[KeyPage, int]:
        """A page of keys; and how old that is (ms)."""
        return await self._ask(
            request, lambda replica, now_ms: _page(replica, request, now_ms), attrgetter("size"), PAGE_WORK
        )

    async def changes(self, request: KvWatch, caller: Caller) -> Changes:
        """As `KvWatches.changes`."""
        if request.stop == request.start + b"\0":
            self.check_places(request, [request.start])
        watch = Watch(request.after, request.mark, request.every, request.start, request.stop)
        host = self._host(request)
        return await self._broker.kv_watches.changes(
            host, watch, request.max_messages, request.max_bytes, request.wait_ms / 1000, self._room
        )

    async def _ask(
        self,
        request: KvGet | KvScan,
        question: Callable[[PartitionReplica, int], T],
        size: Callable[[T], int],
        work: int,
        requests: int = 1,
    ) -> tuple[T, int]:
        host, reads, clock, room = self._host(request), self._broker.reads, self._broker.clock, self._room
        if request.stale:
            return await reads.ask_stale(
                host, lambda replica: question(replica, clock.now_ms()), requests, room, size, work
            )
        await self._time.advance_for_values(host)
        return await reads.ask(host, lambda replica: question(replica, 0), requests, room, size, work), 0

    def check_places(self, request: KvGet | KvWatch, keys: Sequence[bytes]) -> None:
        """Refuse to look for keys where they cannot be: who asks does not know the topic's delimiter, or knows the
        topic as it was before it was made anew, and would take them for absent. Raises InvalidRequest."""
        opened = self._broker.catalog.topics.get(request.topic)
        if opened is None or opened.record.kind != COMPACTED:
            return  # to ask says why
        record = opened.record
        places = KeyPartitions.of_topic(record.initial_partitions, record.settings)
        if places.partitions == 1 or request.partition >= places.partitions:
            return
        for key in keys:
            if (wanted := places.of(key)) != request.partition:
                shown, delimiter = key[:80].decode(errors="replace"), places.delimiter.decode()
                has = f"the partition_delimiter {delimiter!r}" if delimiter else "no partition_delimiter"
                raise InvalidRequest(
                    f"key {shown!r} belongs to partition {wanted}, not {request.partition}: topic {request.topic!r} "
                    f"has {places.partitions} partitions and {has}: it was made anew, or the client is too old",
                    topic=request.topic,
                    **{BELONGS_TO: wanted},
                )

    def _host(self, request: KvGet | KvScan | KvWatch) -> RaftGroup:
        """The group of the partition that a request is about. InvalidRequest unless its topic has keys."""
        topic = request.topic
        kind = self._broker.catalog.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
        return self._broker.catalog.partition(topic, request.partition).raft_group


def _page(replica: PartitionReplica, request: KvScan, now_ms: int) -> KeyPage:
    """A page, made part by part (apply thread): of thousands of rows none is kept as an object by itself."""
    keys, packed, following = 0, [], None
    for rows, behind in replica.scan(request.start, request.stop, request.limit, request.max_bytes, now_ms):
        keys += len(rows)
        packed.append(pack_rows(rows))
        following = behind
    return KeyPage(keys, packed, sum([len(part) for part in packed]), following)


def _values(replica: PartitionReplica, requests: Sequence[KvGet], now_ms: int) -> tuple[list[list[bytes | None]], int]:
    """The values for the first of these requests, and their bytes."""
    found: list[list[bytes | None]] = []
    size, keys_left = 0, KEYS_MOST
    for request in requests:
        values = replica.values(request.keys[:keys_left], ANSWER_BYTES, now_ms)
        keys_left -= len(request.keys)
        found.append(values)
        for value in values:
            if value is not None:
                size += len(value)
        if size >= ANSWER_BYTES or keys_left <= 0:
            break
    return found, size
