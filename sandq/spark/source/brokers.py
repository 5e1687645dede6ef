"""The requests that planning sends to the brokers: list partitions, measure ranges of their logs, and hold messages.

`Brokers` is the interface that planning uses. `ClientBrokers` implements it with a client; tests use a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

from sandq.model import offsets as offset_model
from sandq.model.errors import Conflict, HistoryGone, InvalidRequest, UnknownPartition, UnknownTopic
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.protocol.requests_log import MeasureReply
from sandq.spark.credentials import NO_CREDENTIALS, Credentials
from sandq.spark.source.options import LATEST_VALUES, LOG, SourceOptions, Topics
from sandq.spark.source.positions import TopicPartition
from sandq.sync import Client, connect

CLIENT_NAME: Final = "sandq-spark"
MAX_PARALLEL: Final = 16
"""Number of partitions that are requested in parallel."""

K = TypeVar("K")
V = TypeVar("V")


class TopicInfo(NamedTuple):
    """The topic of a partition, and the topic's kind."""

    topic: str
    kind: str


class Brokers(Protocol):
    """The requests that planning needs."""

    @property
    def cluster(self) -> str:
        """UUID of the cluster."""

    def partitions(self, topics: Topics) -> dict[TopicPartition, TopicInfo]:
        """Return the partitions that `topics` selects.

        Raises UnknownTopic or UnknownPartition if a named topic or partition does not exist.
        """

    def measure(
        self,
        tp: TopicPartition,
        topic: str,
        start: bytes,
        end: bytes | None,
        most: int | None = None,
        pending: bool = False,
    ) -> MeasureReply:
        """Measure a range of a partition's log, as `Client.measure` does.

        Raises UnknownTopic if the topic does not have the number in `tp`. Raises HistoryGone if the start is from
        before the partition's clock was set back.
        """

    def hold(self, topic: str, name: str, offsets: Mapping[int, bytes], ttl_ms: int) -> None:
        """Keep the messages above these offsets, by partition, from being trimmed for `ttl_ms`."""

    def all(self, work: Callable[[K], V], items: Iterable[K]) -> list[V]:
        """Return the results of `work` for each item; several run in parallel."""


class ClientBrokers:
    """Sends the requests through a client, which connects at the first request."""

    def __init__(self, servers: tuple[str, ...], credentials: Credentials = NO_CREDENTIALS) -> None:
        self._servers = servers
        self._credentials = credentials
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = connect(*self._servers, name=CLIENT_NAME, **self._credentials.arguments())
        return self._client

    @property
    def cluster(self) -> str:
        return self.client.cluster_uuid

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def partitions(self, topics: Topics) -> dict[TopicPartition, TopicInfo]:
        admin = self.client.admin
        if topics.pattern is not None:
            records = [record for record in admin.list_topics() if topics.wants(record.name, 0)]
        else:
            records = [admin.topic(name) for name in topics.assigned or topics.names]
        for record in records:
            missing = [one for one in topics.assigned.get(record.name, ()) if one >= len(record.partitions)]
            if missing:
                raise UnknownPartition(
                    f"assign: topic {record.name!r} has {len(record.partitions)} partitions, but no {missing[0]}",
                    topic=record.name,
                )
        return {
            TopicPartition(record.number, partition): TopicInfo(record.name, record.kind)
            for record in records
            for partition in range(len(record.partitions))
            if topics.wants(record.name, partition)
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
        end_text = None if end is None else offset_model.to_text(end)
        with naming_clock_reset(topic, tp.partition):
            found = self.client.measure(
                topic, tp.partition, offset_model.to_text(start), end_text, limit=most, pending=pending
            )
        if found.number != tp.number:
            raise UnknownTopic(f"topic {topic!r} was deleted; a new topic has its name", topic=topic)
        return found

    def hold(self, topic: str, name: str, offsets: Mapping[int, bytes], ttl_ms: int) -> None:
        texts = {partition: offset_model.to_text(offset) for partition, offset in offsets.items()}
        self.client.admin.hold(topic, name, texts, ttl_ms / 1000)

    def all(self, work: Callable[[K], V], items: Iterable[K]) -> list[V]:
        with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="sandq-spark") as pool:
            return list(pool.map(work, items))


def check_kinds(partitions: Mapping[TopicPartition, TopicInfo], options: SourceOptions) -> None:
    """Raise InvalidRequest if the view does not fit the kind of one of the topics."""
    of_compacted = options.view == LATEST_VALUES
    wrong = sorted({found.topic for found in partitions.values() if (found.kind == COMPACTED) is not of_compacted})
    if options.view != LOG and wrong:
        wanted = COMPACTED if of_compacted else f"{TIMER}, {PRIORITY} and {FAIR}"
        raise InvalidRequest(
            f"view {options.view!r} is for {wanted} topics; {', '.join(map(repr, wrong[:10]))} "
            f"{'are' if len(wrong) > 1 else 'is'} none. The view {LOG!r} is for all topics"
        )


def clock_reset_text(topic: str, partition: int) -> str:
    """Return the error text for a partition whose clock was set back after a position in it was stored."""
    return (
        f"topic {topic!r}, partition {partition}: its clock was set back since, and its messages have new positions: "
        "reading on could miss some messages and return others twice. Start the query again, a stream with a new "
        "checkpoint, from the time of the reset (startingTimestamp, or per partition startingOffsetsByTimestamp)"
    )


@contextmanager
def naming_clock_reset(topic: str, partition: int) -> Iterator[None]:
    """Convert the error for a start from before a clock reset into HistoryGone, which names the partition."""
    try:
        yield
    except Conflict as error:
        if "clock_epoch" not in error.details:
            raise
        raise HistoryGone(clock_reset_text(topic, partition), topic=topic, partition=partition) from error


def before(cursor: bytes, partition: int) -> bytes:
    """Return the largest offset below `cursor` that a message of this partition can have."""
    row = max((int.from_bytes(cursor, "big") >> 12) - 1, 0)
    return (row << 12 | partition).to_bytes(offset_model.OFFSET_BYTES, "big")


def closed_end(reply: MeasureReply) -> bytes:
    """Return the offset up to which the partition is closed; a range may end there."""
    return offset_model.pack(reply.closed_ms, 0, 0, 0)
