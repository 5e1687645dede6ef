"""What a server answers and pushes: the fields after `[0, request id]`, and DELIVER.

    HELLO          [server_version str, node_id str, cluster_uuid str, limits map, now_ms]
    METADATA       [nodes [[node_id, host, port]...], topics [topic record map...]]
    PRODUCE        [offsets]            [base bin16, count] | bin of 16 bytes a message
    SUBSCRIBE      [partitions array]   those of the topic that this node leads
    UNSUBSCRIBE    []
    ACK, NACK      [results array]      one per item: nil (done) | [[base bin16, count]...] lost, []: all
    EXTEND         [results array]      one per item: new deadline_ms | nil (lost)
    PING           [now_ms]
    TOPIC_CREATE   [topic record map]
    TOPIC_DELETE   []
    GROUP_LIST     [rows array of maps]
    TOPIC_STATS    [rows array of maps]
    CLUSTER_INFO   [map]
    CLUSTER_CLOCK  [map]

    DELIVER 7      [group_number, partition, token, attempt, deadline_ms, offsets, ids, created_ms, live,
                    last bool, batch bin]
    offsets      = bin16, the base of a run (position i of the batch is base + i places) | bin of 16 bytes
                   a position
    ids          = nil (they are the offsets) | bin of 16 bytes a position
    created_ms   = int, of all positions | bin of 8 bytes a position, little-endian signed
    live         = nil (all positions) | [[first position, count]...], rising, not touching
    last         = true: no further frame of this lease follows | false: one may, or the broker does not say

    topic record = {name, number, kind, partitions: [[partition, group_number, leader node_id | nil]...],
                    initial_partitions, replicas, settings: map}

`parse` is the client's side: a malformed answer is a ProtocolError. Unknown further fields and keys are a
newer broker's and are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.protocol.fields import OFFSET_BYTES, PARTITION_MAX, U48_MAX, Field, Shape
from sandq.protocol.frames import Frame, Type, encode_with_tail
from sandq.protocol.requests import RANGE_MESSAGES


def _shape(name: str, *fields: Field) -> Shape:
    return Shape(name, *fields, exact=False, error=ProtocolError)


_HELLO = _shape(
    "HELLO reply",
    Field("server_version", str),
    Field("node_id", str),
    Field("cluster_uuid", str),
    Field("limits", dict),
    Field("now_ms", int, maximum=U48_MAX),
)


class HelloReply(NamedTuple):
    """Who answers: limits as in `model.limits` by name (those a client has to keep), the node's time."""

    server_version: str
    node_id: str
    cluster_uuid: str
    limits: Mapping[str, Any]
    now_ms: int

    @classmethod
    def parse(cls, frame: Frame) -> HelloReply:
        _HELLO.check(frame)
        return cls._make(frame[2:7])


class Node(NamedTuple):
    """Where a node serves clients."""

    node_id: str
    host: str
    port: int


class Partition(NamedTuple):
    """One partition of a topic; `leader` is a node id, None while there is none."""

    partition: int
    group_number: int
    leader: str | None


class TopicRecord(NamedTuple):
    """A topic as metadata tells of it. `number` is never reused, so it tells a topic from its re-created namesake."""

    name: str
    number: int
    kind: str
    partitions: Sequence[Partition]
    initial_partitions: int
    replicas: int
    settings: Mapping[str, Any]

    @classmethod
    def from_map(cls, record: object) -> TopicRecord:
        """ProtocolError unless it is a topic record."""
        try:
            assert isinstance(record, dict)
            found = cls._make([record[name] for name in cls._fields])
            partitions = [Partition(*row) for row in found.partitions]
        except (AssertionError, KeyError, TypeError):
            raise ProtocolError(f"not a topic record: {str(record)[:200]}") from None
        numbers = [type(row.partition) is int and type(row.group_number) is int for row in partitions]
        places = [row.partition for row in partitions]
        if not (type(found.name) is str and type(found.settings) is dict and all(numbers)) or places != [
            *range(len(partitions))
        ]:
            raise ProtocolError(f"not a topic record: {str(record)[:200]}")
        return found._replace(partitions=partitions)

    def to_map(self) -> dict[str, Any]:
        """What goes on the wire."""
        return self._asdict() | {"partitions": [list(row) for row in self.partitions]}


_METADATA = _shape("METADATA reply", Field("nodes", list), Field("topics", list))


class MetadataReply(NamedTuple):
    """The nodes that serve clients, and the topics asked for."""

    nodes: Sequence[Node]
    topics: Sequence[TopicRecord]

    @classmethod
    def parse(cls, frame: Frame) -> MetadataReply:
        _METADATA.check(frame)
        nodes = []
        for row in frame[2]:
            if type(row) is not list or [*map(type, row[:3])] != [str, str, int]:
                raise _METADATA.wrong(1, "expected [node id, host, port] items")
            nodes.append(Node(*row[:3]))
        return cls(nodes, [TopicRecord.from_map(record) for record in frame[3]])

    def fields(self) -> tuple[Any, ...]:
        """For `encode_reply`."""
        return [list(node) for node in self.nodes], [topic.to_map() for topic in self.topics]


class Offsets(NamedTuple):
    """The offsets of a batch, by position: a run (`column` None) or one each."""

    base: bytes
    messages: int
    column: bytes | None

    @classmethod
    def parse(cls, frame: Frame) -> Offsets:
        """From a PRODUCE reply."""
        value = frame[2] if len(frame) > 2 else None
        if type(value) is bytes and value and not len(value) % OFFSET_BYTES:
            return cls(value[:OFFSET_BYTES], len(value) // OFFSET_BYTES, value)
        if type(value) is list and [*map(type, value)] == [bytes, int] and len(value[0]) == OFFSET_BYTES:
            return cls(value[0], value[1], None)
        raise ProtocolError("PRODUCE reply field 1 (offsets): expected [base offset, count] or bin of 16 bytes each")


_DELIVER = _shape(
    "DELIVER",
    Field("group_number", int),
    Field("partition", int, maximum=PARTITION_MAX),
    Field("token", int),
    Field("attempt", int),
    Field("deadline_ms", int, maximum=U48_MAX),
    Field("offsets", bytes),
    Field("ids", bytes, optional=True),
    Field("created_ms", int, maximum=U48_MAX),
    Field("live", list, optional=True),
    Field("last", bool),
    Field("batch", bytes),
)


class Deliver(NamedTuple):
    """Messages under one lease. A lease may span several of these frames, which then follow one another."""

    subscription_id: int
    group_number: int
    partition: int
    token: int
    attempt: int
    deadline_ms: int
    offsets: bytes
    ids: bytes | None
    created_ms: int | bytes
    live: Sequence[Sequence[int]] | None
    last: bool
    batch: bytes

    @classmethod
    def parse(cls, frame: Frame) -> Deliver:
        if len(frame) > 9 and type(frame[9]) is bytes:
            _DELIVER.check([*frame[:9], 0, *frame[10:]])
            if not frame[9] or len(frame[9]) % 8:
                raise _DELIVER.wrong(8, "expected int or bin of 8 bytes a position")
        else:
            _DELIVER.check(frame)
        if not frame[7] or len(frame[7]) % OFFSET_BYTES:
            raise _DELIVER.wrong(6, "expected bin of 16 bytes a position")
        if frame[8] is not None and (not frame[8] or len(frame[8]) % OFFSET_BYTES):
            raise _DELIVER.wrong(7, "expected nil or bin of 16 bytes a position")
        for row in frame[10] or ():
            if type(row) is not list or [*map(type, row)] != [int, int] or row[0] < 0 or row[1] < 1:
                raise _DELIVER.wrong(9, "expected nil or [first position, count] items")
        return cls._make(frame[1:13])


def encode_deliver(
    subscription_id: int,
    group_number: int,
    partition: int,
    token: int,
    attempt: int,
    deadline_ms: int,
    offsets: bytes,
    ids: bytes | None,
    created_ms: int | bytes,
    live: Sequence[Sequence[int]] | None,
    batch: bytes | bytearray | memoryview,
    *,
    last: bool = False,
) -> bytes:
    """The bytes of a DELIVER push; the batch goes in as it is, copied once.

    `last`: no further frame of this lease follows. Only then can a client ack a lease as a whole, in one
    small item; so leave it False when in doubt: such an ack is for all of the lease, what was never sent
    included.
    """
    return encode_with_tail(
        (
            Type.DELIVER,
            subscription_id,
            group_number,
            partition,
            token,
            attempt,
            deadline_ms,
            offsets,
            ids,
            created_ms,
            live,
            last,
        ),
        batch,
    )


def results(frame: Frame, count: int) -> list[Any]:
    """The results of an ACK, NACK or EXTEND: one per item sent, checked only for being as many."""
    value = frame[2] if len(frame) > 2 else None
    if type(value) is not list or len(value) != count:
        raise ProtocolError(f"expected an array of {count} results, got {str(value)[:100]}")
    return value


def lost_ranges(result: object) -> list[tuple[bytes, int]] | None:
    """One result of an ACK or NACK: None when it was done, else the `(base, count)` ranges lost, [] for the lease."""
    if result is None:
        return None
    if type(result) is not list:
        raise ProtocolError(f"a result must be nil or an array of ranges, not {str(result)[:100]}")
    ranges = []
    for row in result:
        if type(row) is not list or [*map(type, row)] != [bytes, int] or len(row[0]) != OFFSET_BYTES:
            raise ProtocolError(f"a lost range must be [offset, count], not {str(row)[:100]}")
        ranges.append((row[0], min(row[1], RANGE_MESSAGES)))
    return ranges
