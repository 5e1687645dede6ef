"""`Sender`: sends the chunks of one task to the broker, with a `PartitionSender` for each topic partition.

The task's thread makes chunks, and the client's thread sends them. Chunks are sent in rounds: while one round is sent,
the next one is made.
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
"""Bytes of chunks from which a round is sent; up to twice as many are in memory."""


@dataclass
class Written:
    """Counts of the rows and chunks that a task has written."""

    rows: int = 0
    chunks: int = 0
    already_stored: int = 0
    """Number of chunks that an earlier attempt had stored."""
    again: int = 0
    """Number of chunks written with a new producer id, because an earlier attempt had different rows."""
    topics: set[str] = field(default_factory=set)


class Sender:
    """Sends the chunks of one task through a client; not thread-safe."""

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
        self._sending: Future[None] | None = None

    def _each(
        self, work: Callable[[PartitionSender], Awaitable[None]], partition_senders: Iterable[PartitionSender]
    ) -> None:
        self._client.call(lambda client: each(work, partition_senders))

    def topic(self, name: str) -> TopicRecord:
        """Return the record of a topic from the cluster. Raises UnknownTopic."""
        return self._client.call(lambda client: cluster_of(client).topic(name))

    @property
    def checks(self) -> MessageValidation:
        """Checks with the broker's limits."""
        return MessageValidation(self._client.limits)

    # -- chunks ---------------------------------------------------------------------------------------------------

    def send(self, chunk: Chunk) -> None:
        """Add a chunk to the current round; send the round if it is full.

        Raises the errors of `PartitionSender.deliver` for chunks of earlier rounds.
        """
        key = (chunk.topic, chunk.partition)
        partition_sender = self._partition_senders.get(key)
        if partition_sender is None:
            partition_sender = self._partition_senders[key] = PartitionSender(
                self._cluster, *key, self._identity, again=self._again
            )
        self._round.setdefault(partition_sender, []).append(chunk)
        self._bytes += len(chunk.data)
        self._written.rows += chunk.rows
        self._written.chunks += 1
        if self._bytes >= ROUND_BYTES:
            self._begin_round()

    def finish(self) -> Written:
        """Wait until all chunks are stored. Raises the same errors as `send`."""
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
        """Stop, finished or not. A round that is being sent ends when the client is closed."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_round(self) -> None:
        self._end_round()
        if self._round:
            chunks, self._round, self._bytes = self._round, {}, 0
            self._sending = self._pool.submit(
                self._each, lambda partition_sender: partition_sender.deliver(chunks[partition_sender]), list(chunks)
            )

    def _end_round(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()


async def _cluster_of(client: AsyncClient) -> Cluster:
    return cluster_of(client)
