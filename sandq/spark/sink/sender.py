"""Send the chunks of one task to the broker: made in the task's thread, sent in the client's, by a `PartitionSender`
for each topic partition. While one round of chunks is under way, the next is made.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sandq.client import Client as AsyncClient
from sandq.client import cluster_of
from sandq.client.producer import MessageValidation
from sandq.client.transport import Cluster, each
from sandq.protocol.replies import TopicRecord
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.identity import Identity
from sandq.spark.sink.partition_sender import PartitionSender
from sandq.sync import Client

log = logging.getLogger("sandq.spark")

ROUND_BYTES: Final = 16 << 20
"""Of the chunks that are sent together; twice as many are in memory."""


@dataclass
class Written:
    """What a task wrote."""

    rows: int = 0
    chunks: int = 0
    already_stored: int = 0
    """Of the chunks: by an earlier attempt."""
    again: int = 0
    """Of the chunks: written under another name, for the rows of an earlier attempt were others."""
    topics: set[str] = field(default_factory=set)


class Sender:
    """Sends the chunks of one task through a client; for one thread."""

    def __init__(self, client: Client, identity: Identity, *, again: bool = False) -> None:
        self._client = client
        self._cluster = client.call(_cluster_of)
        self._identity = identity
        self._again = again
        self._written = Written()
        self._partition_senders: dict[tuple[str, int], PartitionSender] = {}
        self._round: dict[PartitionSender, list[Chunk]] = {}
        self._bytes = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sandq-spark")
        self._under_way: Future[None] | None = None

    def _each(
        self, work: Callable[[PartitionSender], Awaitable[None]], partition_senders: Iterable[PartitionSender]
    ) -> None:
        self._client.call(lambda client: each(work, partition_senders))

    def topic(self, name: str) -> TopicRecord:
        """What the cluster tells of a topic. UnknownTopic."""
        return self._client.call(lambda client: cluster_of(client).topic(name))

    @property
    def checks(self) -> MessageValidation:
        """The broker's limits."""
        return MessageValidation(self._client.limits)

    # The chunks.

    def send(self, chunk: Chunk) -> None:
        """Have a chunk sent soon. Raises what an earlier one failed with, as `PartitionSender.deliver`."""
        place = (chunk.topic, chunk.partition)
        partition_sender = self._partition_senders.get(place)
        if partition_sender is None:
            partition_sender = self._partition_senders[place] = PartitionSender(
                self._cluster, *place, self._identity, again=self._again
            )
        self._round.setdefault(partition_sender, []).append(chunk)
        self._bytes += len(chunk.data)
        self._written.rows += chunk.rows
        self._written.chunks += 1
        if self._bytes >= ROUND_BYTES:
            self._begin_round()

    def finish(self) -> Written:
        """Wait until all is stored; raises as `send`."""
        self._begin_round()
        self._end_round()
        self._each(PartitionSender.finish, self._partition_senders.values())
        written = self._written
        written.already_stored = sum(
            partition_sender.already_stored for partition_sender in self._partition_senders.values()
        )
        written.again = sum(partition_sender.again for partition_sender in self._partition_senders.values())
        written.topics = {topic for topic, _ in self._partition_senders}
        return written

    def close(self) -> None:
        """Leave it, finished or not; what is under way ends with the client."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_round(self) -> None:
        self._end_round()
        if self._round:
            chunks, self._round, self._bytes = self._round, {}, 0
            self._under_way = self._pool.submit(
                self._each, lambda partition_sender: partition_sender.deliver(chunks[partition_sender]), list(chunks)
            )

    def _end_round(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


async def _cluster_of(client: AsyncClient) -> Cluster:
    return cluster_of(client)
