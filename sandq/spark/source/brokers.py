"""What a source asks the brokers: which partitions there are, how much they hold, and that they keep it.

`Brokers` is what planning needs of them; `ClientBrokers` asks real ones. A stream's reader lives as long as its query,
in a process that Spark pickles nothing of but the options.
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
from sandq.spark.credentials import NOBODY, Credentials
from sandq.spark.source.options import LATEST_VALUES, LOG, SourceOptions, Topics
from sandq.spark.source.positions import Place
from sandq.sync import Client, connect

CLIENT_NAME: Final = "sandq-spark"
AT_ONCE: Final = 16
"""Partitions that are asked together."""

K = TypeVar("K")
V = TypeVar("V")


class Found(NamedTuple):
    """A partition that is read: of which topic, and of what kind that is."""

    topic: str
    kind: str


class Brokers(Protocol):
    """Everything that planning asks."""

    @property
    def cluster(self) -> str:
        """The UUID of the cluster."""

    def places(self, topics: Topics) -> dict[Place, Found]:
        """The partitions that are wanted. UnknownTopic, UnknownPartition when one that is named is not there."""

    def measure(
        self, place: Place, topic: str, start: bytes, end: bytes | None, most: int | None = None, pending: bool = False
    ) -> MeasureReply:
        """As `Client.measure`. UnknownTopic when the topic is another one than `place` names; HistoryGone when the
        start is of before the partition's clock was set back."""

    def hold(self, topic: str, name: str, offsets: Mapping[int, bytes], ttl_ms: int) -> None:
        """Keep what stands above these offsets, by partition."""

    def all(self, work: Callable[[K], V], items: Iterable[K]) -> list[V]:
        """`work` done for each, several at a time."""


class ClientBrokers:
    """Asks through a client that is connected when it is first needed."""

    def __init__(self, servers: tuple[str, ...], who: Credentials = NOBODY) -> None:
        self._servers = servers
        self._who = who
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = connect(*self._servers, name=CLIENT_NAME, **self._who.arguments())
        return self._client

    @property
    def cluster(self) -> str:
        return self.client.cluster_uuid

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def places(self, topics: Topics) -> dict[Place, Found]:
        admin = self.client.admin
        if topics.pattern is not None:
            records = [record for record in admin.list_topics() if topics.wants(record.name, 0)]
        else:
            records = [admin.topic(name) for name in topics.assigned or topics.names]
        for record in records:
            missing = [one for one in topics.assigned.get(record.name, ()) if one >= len(record.partitions)]
            if missing:
                raise UnknownPartition(
                    f"assign: topic {record.name!r} has {len(record.partitions)} partitions, there is no {missing[0]}",
                    topic=record.name,
                )
        return {
            Place(record.number, partition): Found(record.name, record.kind)
            for record in records
            for partition in range(len(record.partitions))
            if topics.wants(record.name, partition)
        }

    def measure(
        self, place: Place, topic: str, start: bytes, end: bytes | None, most: int | None = None, pending: bool = False
    ) -> MeasureReply:
        end_text = None if end is None else offset_model.to_text(end)
        with naming_set_back(topic, place.partition):
            found = self.client.measure(
                topic, place.partition, offset_model.to_text(start), end_text, limit=most, pending=pending
            )
        if found.number != place.number:
            raise UnknownTopic(f"topic {topic!r} was deleted; there is another one of this name", topic=topic)
        return found

    def hold(self, topic: str, name: str, offsets: Mapping[int, bytes], ttl_ms: int) -> None:
        texts = {partition: offset_model.to_text(offset) for partition, offset in offsets.items()}
        self.client.admin.hold(topic, name, texts, ttl_ms / 1000)

    def all(self, work: Callable[[K], V], items: Iterable[K]) -> list[V]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sandq-spark") as pool:
            return list(pool.map(work, items))


def check_kinds(places: Mapping[Place, Found], options: SourceOptions) -> None:
    """InvalidRequest when a view is of another kind of topic."""
    of_compacted = options.view == LATEST_VALUES
    wrong = sorted({found.topic for found in places.values() if (found.kind == COMPACTED) is not of_compacted})
    if options.view != LOG and wrong:
        wanted = COMPACTED if of_compacted else f"{TIMER}, {PRIORITY} and {FAIR}"
        raise InvalidRequest(
            f"view {options.view!r} is of {wanted} topics; {', '.join(map(repr, wrong[:10]))} "
            f"{'are' if len(wrong) > 1 else 'is'} none. What was written to any topic is its view {LOG!r}"
        )


def set_back(topic: str, partition: int) -> str:
    """What to say of a partition whose clock was set back since a place in it was noted, and what to do about it."""
    return (
        f"topic {topic!r}, partition {partition}: its clock was set back since, and messages were placed anew: what is "
        "read from there on may leave some out, and have others twice. Begin anew, a stream with another checkpoint, "
        "from the instant of the reset (startingTimestamp, or per partition startingOffsetsByTimestamp)"
    )


@contextmanager
def naming_set_back(topic: str, partition: int) -> Iterator[None]:
    """Say of which partition it is, and what to do, when a node refuses a start of before a clock was set back."""
    try:
        yield
    except Conflict as error:
        if "clock_epoch" not in error.details:
            raise
        raise HistoryGone(set_back(topic, partition), topic=topic, partition=partition) from error


def before(cursor: bytes, partition: int) -> bytes:
    """The last offset before a cursor that a partition can have."""
    row = max((int.from_bytes(cursor, "big") >> 12) - 1, 0)
    return (row << 12 | partition).to_bytes(offset_model.OFFSET_BYTES, "big")


def closed_end(reply: MeasureReply) -> bytes:
    """Where a partition is closed: a stretch may end there."""
    return offset_model.pack(reply.closed_ms, 0, 0, 0)
