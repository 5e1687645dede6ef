"""Answer requests about the keys of compacted topics: get, scan and watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, TypeVar

from sandq.broker.broker import Broker
from sandq.broker.reads.linearizable_reads import PAGE_WORK, Output
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
"""Maximum number of keys in one answer. The client sends a further request for the remaining keys."""
KEYS_OF_WORK: Final = 8
"""Number of key look-ups that cost the same as the look-up of one message."""


class KeyPage(NamedTuple):
    """Keys and their values, as of one instant."""

    keys: int
    """Number of keys."""
    rows: list[bytes]
    """Encoded rows of the answer, in several parts (see `pack_rows`)."""
    size: int
    """Total bytes of the parts."""
    following: bytes | None
    """The key at which the next page starts. None if there are no more keys."""


class KvRequests:
    """Get, scan and watch the keys of a partition."""

    def __init__(self, broker: Broker, output: Output) -> None:
        """`output`: the output of the connection, which is charged for the answers."""
        self._broker = broker
        self._output = output
        self._time = PartitionTime(broker.clock)

    async def get(self, requests: Sequence[KvGet], caller: Caller) -> tuple[list[list[bytes | None]], int]:
        """Answer requests to one partition, in order, up to the request that reaches `ANSWER_BYTES` or `KEYS_MOST`.

        Return the rows of each answered request, and their age in ms. For the rows of one request, see
        `PartitionReplica.values`. Either all requests allow stale answers, or none does. The caller must have called
        `check_partitions` for each request."""
        (found, _), stale_ms = await self._ask(
            requests[0],
            lambda replica, now_ms: _values(replica, requests, now_ms),
            itemgetter(1),
            1 + sum([len(request.keys) for request in requests]) // KEYS_OF_WORK,
            len(requests),
        )
        return found, stale_ms

    async def scan(self, request: KvScan, caller: Caller) -> tuple[KeyPage, int]:
        """Return a page of keys, and the age of the page in ms."""
        return await self._ask(
            request, lambda replica, now_ms: _page(replica, request, now_ms), attrgetter("size"), PAGE_WORK
        )

    async def changes(self, request: KvWatch, caller: Caller) -> Changes:
        """Return changes of keys (see `KvWatches.changes`)."""
        if request.stop == request.start + b"\0":
            self.check_partitions(request, [request.start])
        watch = Watch(request.after, request.mark, request.every, request.start, request.stop)
        host = self._host(request)
        return await self._broker.kv_watches.changes(
            host, watch, request.max_messages, request.max_bytes, request.wait_ms / 1000, self._output
        )

    async def _ask(
        self,
        request: KvGet | KvScan,
        question: Callable[[PartitionReplica, int], T],
        size: Callable[[T], int],
        work: int,
        requests: int = 1,
    ) -> tuple[T, int]:
        """Ask a partition about its keys. Return the answer and its age in ms.

        If the request does not allow stale answers, the age is 0.

        `question(replica, now_ms)`: the query. `now_ms` 0 means that values expire only by the time in the log."""
        host, reads, clock, output = self._host(request), self._broker.reads, self._broker.clock, self._output
        if request.stale:
            return await reads.ask_stale(
                host, lambda replica: question(replica, clock.now_ms()), requests, output, size, work
            )
        await self._time.advance_for_values(host)
        return await reads.ask(host, lambda replica: question(replica, 0), requests, output, size, work), 0

    def check_partitions(self, request: KvGet | KvWatch, keys: Sequence[bytes]) -> None:
        """Raise InvalidRequest if a key belongs to another partition.

        In this case, the client does not know the topic's delimiter, or still uses the number of partitions of a
        deleted topic. Without this error, the client would conclude that the key does not exist."""
        opened = self._broker.catalog.topics.get(request.topic)
        if opened is None or opened.record.kind != COMPACTED:
            return  # the request fails later with the reason
        record = opened.record
        routing = KeyPartitions.of_topic(record.initial_partitions, record.settings)
        if routing.partitions == 1 or request.partition >= routing.partitions:
            return
        for key in keys:
            if (wanted := routing.of(key)) != request.partition:
                shown, delimiter = key[:80].decode(errors="replace"), routing.delimiter.decode()
                has = f"the partition_delimiter {delimiter!r}" if delimiter else "no partition_delimiter"
                raise InvalidRequest(
                    f"key {shown!r} belongs to partition {wanted}, not {request.partition}: topic {request.topic!r} "
                    f"has {routing.partitions} partitions and {has}: it was created again, or the client is too old",
                    topic=request.topic,
                    **{BELONGS_TO: wanted},
                )

    def _host(self, request: KvGet | KvScan | KvWatch) -> RaftGroup:
        """Return the Raft group of the requested partition. If its topic has no keys, raise InvalidRequest."""
        topic = request.topic
        kind = self._broker.catalog.topic(topic).record.kind
        if kind != COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is a {kind} topic: only compacted ones have keys", topic=topic)
        return self._broker.catalog.partition(topic, request.partition).raft_group


def _page(replica: PartitionReplica, request: KvScan, now_ms: int) -> KeyPage:
    """Read and encode a page part by part, so that memory never holds thousands of rows as objects (apply thread)."""
    keys, packed, following = 0, [], None
    for rows, behind in replica.scan(request.start, request.stop, request.limit, request.max_bytes, now_ms):
        keys += len(rows)
        packed.append(pack_rows(rows))
        following = behind
    return KeyPage(keys, packed, sum([len(part) for part in packed]), following)


def _values(replica: PartitionReplica, requests: Sequence[KvGet], now_ms: int) -> tuple[list[list[bytes | None]], int]:
    """Answer the first requests until a limit is reached. Return the rows by request, and their total bytes."""
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
