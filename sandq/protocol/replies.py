"""Replies to producers, consumers and administration, and the DELIVER push: the fields after `[0, request id]`. Replies
about stored messages are in `replies_messages`; `docs/protocol.md` lists the reply to each request.

    offsets      = [base bin16, count] | bin of 16 bytes a message
    conflicts    = nil | [[position, state]...], rising: messages that were refused. state: of the message that has the
                   unique key; its id is in the 16 bytes of the position
    outcomes     = missing or nil (not reported) | [[position, "replaced", id bin16] | [position, "stored" | "ignored",
                   state]...], rising: results of the other positions whose unique keys were taken. state: of the
                   message that has the key. In PRODUCE, they follow the conflicts

    DELIVER 7      [group_number, partition, token, attempt, deadline_ms, offsets, ids, created_ms, live,
                    last bool, (begin_first true, it may be missing,) batch bin]
    offsets      = bin16, the base of a run (position i of the batch is base + i places) | bin of 16 bytes
                   a position
    ids          = nil (they are the offsets) | bin of 16 bytes a position
    created_ms   = int, for all positions | bin of 8 bytes a position, little-endian signed
    live         = nil (all positions) | [[first position, count]...], rising, not touching
    last         = true: no further frame of this lease follows | false: one may, or the broker does not say

    topic record = {name, number, kind,
                    partitions: [[partition, group_number, leader node_id | nil, [node_id...], moving bool]...],
                    initial_partitions, replicas, settings: map}

`parse` is the client's side: a malformed reply is a ProtocolError. Unknown further fields and keys come from a newer
broker and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.model.piece import LeasedPieces
from sandq.protocol.fields import OFFSET_BYTES, PARTITION_MAX, U48_MAX, Field, Shape
from sandq.protocol.frames import Frame, Type, encode_with_tail
from sandq.protocol.requests import RANGE_MESSAGES

STORED: Final = "stored"
REPLACED: Final = "replaced"
IGNORED: Final = "ignored"
"""Results for a message whose unique key was taken."""


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
    """Identity of a node, the limits of `model.limits` that apply to clients, by name, and the node's time."""

    server_version: str
    node_id: str
    cluster_uuid: str
    limits: Mapping[str, Any]
    now_ms: int
    challenge: bytes | None = None
    """Challenge that a gateway has requested, and to which it must reply with a proof. None if the node does not
    support gateways."""

    @classmethod
    def parse(cls, frame: Frame) -> HelloReply:
        _HELLO.check(frame)
        challenge = frame[7] if len(frame) > 7 and type(frame[7]) is bytes else None
        return cls._make([*frame[2:7], challenge])


class Node(NamedTuple):
    """The address at which a node serves clients."""

    node_id: str
    host: str
    port: int


class Partition(NamedTuple):
    """One partition of a topic. `leader`: node id; None while there is no leader."""

    partition: int
    group_number: int
    leader: str | None
    nodes: tuple[str, ...] = ()
    """Nodes that should hold the partition. The first node should lead it."""
    moving: bool = False
    """Whether other nodes may still hold the partition, or some of `nodes` do not have it yet."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> Partition:
        """Read the row of a partition. Raise TypeError or ValueError if it is malformed."""
        partition, group_number, leader, nodes, moving = row[:5]
        if [type(partition), type(group_number), type(nodes), type(moving)] != [int, int, list, bool]:
            raise TypeError("not the row of a partition")
        if not all(type(node) is str for node in nodes) or type(leader) not in (str, type(None)):
            raise TypeError("a node's id is text")
        return cls(partition, group_number, leader, tuple(nodes), moving)


TWO_REPLICAS: Final = (
    "with 2 replicas the loss of either node stops the partition: a majority of two is both; take 1 or 3"
)


class TopicRecord(NamedTuple):
    """A topic in the metadata. `number` is never reused, so it distinguishes a topic from a later topic of the same
    name."""

    name: str
    number: int
    kind: str
    partitions: Sequence[Partition]
    initial_partitions: int
    replicas: int
    settings: Mapping[str, Any]
    owner: str | None = None
    """The principal that created the topic. The topic counts against the principal's quota. None if the creator was not
    authenticated."""

    @classmethod
    def from_map(cls, record: object) -> TopicRecord:
        """Read a topic record. Raise ProtocolError if it is malformed."""
        try:
            assert isinstance(record, dict)
            found = cls._make([*[record[name] for name in cls._fields[:-1]], record.get("owner")])
            assert found.owner is None or type(found.owner) is str
            partitions = [Partition.of(row) for row in found.partitions]
        except (AssertionError, KeyError, TypeError, ValueError):
            raise ProtocolError(f"not a topic record: {str(record)[:200]}") from None
        places = [row.partition for row in partitions]
        if not (type(found.name) is str and type(found.settings) is dict) or places != [*range(len(partitions))]:
            raise ProtocolError(f"not a topic record: {str(record)[:200]}")
        return found._replace(partitions=partitions)

    @property
    def warnings(self) -> list[str]:
        """Texts for users about choices that may be unintended."""
        return [TWO_REPLICAS] if self.replicas == 2 else []

    def to_map(self) -> dict[str, Any]:
        """Return the map for the wire."""
        said = {name: value for name, value in self._asdict().items() if name != "owner" or value is not None}
        return said | {"partitions": [[*row[:3], list(row.nodes), row.moving] for row in self.partitions]}


_METADATA = _shape("METADATA reply", Field("nodes", list), Field("topics", list))


class MetadataReply(NamedTuple):
    """The nodes that serve clients, and the requested topics."""

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
        """Return the fields for `encode_reply`."""
        return [list(node) for node in self.nodes], [topic.to_map() for topic in self.topics]


class Offsets(NamedTuple):
    """The offsets of a batch, by position: a run (`column` None), or one offset per position. `conflicts`: the refused
    positions, with the state of the message that has the unique key. The offset of a refused position is the id of that
    message."""

    base: bytes
    messages: int
    column: bytes | None
    conflicts: Mapping[int, str] = MappingProxyType({})
    outcomes: Mapping[int, tuple[str, bytes | str]] | None = None
    """By position: results for messages that were not refused although their unique keys were taken. None if not
    reported.

    REPLACED has the id of the message that was cancelled. STORED: both messages are stored, because it was too late to
    cancel the other one. IGNORED: the new message was left out. STORED and IGNORED have the state of the other message.
    """

    @classmethod
    def parse(cls, frame: Frame) -> Offsets:
        """Read a PRODUCE reply."""
        value, rows = (frame[2], frame[3]) if len(frame) > 3 else (None, None)
        if type(value) is bytes and value and not len(value) % OFFSET_BYTES:
            found = cls(value[:OFFSET_BYTES], len(value) // OFFSET_BYTES, value)
        elif type(value) is list and [*map(type, value)] == [bytes, int] and len(value[0]) == OFFSET_BYTES:
            found = cls(value[0], value[1], None)
        else:
            raise ProtocolError(
                "PRODUCE reply field 1 (offsets): expected [base offset, count] or bin of 16 bytes each"
            )
        if rows is not None:
            found = found._replace(conflicts=_conflicts(rows, found.messages))
        if len(frame) > 4 and frame[4] is not None:
            found = found._replace(outcomes=_outcomes(frame[4], found.messages))
        return found

    def fields(self) -> tuple[Any, ...]:
        """Return the fields for `encode_reply`."""
        offsets = [self.base, self.messages] if self.column is None else self.column
        fields = offsets, [[*row] for row in sorted(self.conflicts.items())] or None
        if self.outcomes is None:
            return fields
        return *fields, [[at, *told] for at, told in sorted(self.outcomes.items())]


def _conflicts(rows: object, messages: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for row in rows if type(rows) is list else (None,):
        if type(row) is not list or [*map(type, row)] != [int, str] or not 0 <= row[0] < messages:
            raise ProtocolError("PRODUCE reply field 2 (conflicts): expected nil or [position, state] items")
        found[row[0]] = row[1]
    return found


def _outcomes(rows: object, messages: int) -> dict[int, tuple[str, bytes | str]]:
    found: dict[int, tuple[str, bytes | str]] = {}
    for row in rows if type(rows) is list else (None,):
        if (
            type(row) is not list
            or [*map(type, row[:2])] != [int, str]
            or not 0 <= row[0] < messages
            or len(row) < 3
            or type(row[2]) is not (bytes if row[1] == REPLACED else str)
            or (row[1] == REPLACED and len(row[2]) != OFFSET_BYTES)
        ):
            raise ProtocolError("PRODUCE reply field 3 (outcomes): expected nil or [position, outcome, detail] items")
        found[row[0]] = row[1], row[2]
    return found


PIECE: Final = (
    Field("offsets", bytes),
    Field("ids", bytes, optional=True),
    Field("created_ms", (int, bytes), maximum=U48_MAX),
    Field("live", list, optional=True),
    Field("batch", bytes),
)
"""Fields of a frame that contain a batch, with the broker's data about its messages."""


def check_piece(shape: Shape, number: int, fields: Sequence[Any]) -> None:
    """Raise unless the fields of a piece fit together. `number`: number of the first field. The types were checked
    before."""
    offsets, ids, created_ms, live, _ = fields
    if not offsets or len(offsets) % OFFSET_BYTES:
        raise shape.wrong(number, "expected bin of 16 bytes a position")
    if ids is not None and (not ids or len(ids) % OFFSET_BYTES):
        raise shape.wrong(number + 1, "expected nil or bin of 16 bytes a position")
    if type(created_ms) is bytes and (not created_ms or len(created_ms) % 8):
        raise shape.wrong(number + 2, "expected int or bin of 8 bytes a position")
    for row in live or ():
        if type(row) is not list or [*map(type, row)] != [int, int] or row[0] < 0 or row[1] < 1:
            raise shape.wrong(number + 3, "expected nil or [first position, count] items")


_DELIVER = _shape(
    "DELIVER",
    Field("group_number", int),
    Field("partition", int, maximum=PARTITION_MAX),
    Field("token", int),
    Field("attempt", int),
    Field("deadline_ms", int, maximum=U48_MAX),
    *PIECE[:4],
    Field("last", bool),
    PIECE[4],
)


_DELIVER_ITEMS: Final = 13
"""Items of a DELIVER frame without `begin_first`."""


class Deliver(NamedTuple):
    """Messages under one lease. A lease may span several DELIVER frames, which then follow one another.

    `begin_first`: the consumer must report each message as begun (EXTEND), and wait for the reply, before it begins the
    message. Only if it is true, a frame has this field, before the batch.
    """

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
    begin_first: bool = False

    @classmethod
    def parse(cls, frame: Frame) -> Deliver:
        begin_first = len(frame) > _DELIVER_ITEMS and frame[12] is True
        if begin_first:
            frame = [*frame[:12], *frame[13:]]
        _DELIVER.check(frame)
        check_piece(_DELIVER, 6, [*frame[7:11], frame[12]])
        return cls._make([*frame[1:13], begin_first])


def encode_deliver(
    subscription_id: int, lease: LeasedPieces, *, last: bool = True, reports: bool = True
) -> Iterator[bytes]:
    """Encode the DELIVER pushes of a lease, one for each piece. Each batch is copied once and not encoded again.

    `last`: no further frame of this lease follows. Only then can a client ack the whole lease in one small item. If in
    doubt, use False: such an ack covers the whole lease, including messages that were never sent. `reports`: whether
    the consumer knows `begin_first`.
    """
    left = len(lease.pieces)
    for offsets, ids, created_ms, live, batch in lease.pieces:
        left -= 1
        yield encode_with_tail(
            (
                Type.DELIVER,
                subscription_id,
                lease.group_number,
                lease.partition,
                lease.token,
                lease.attempt,
                lease.deadline_ms,
                offsets,
                ids,
                created_ms,
                live,
                last and not left,
                *([True] if lease.begin_first and reports else ()),
            ),
            batch,
        )


def results(frame: Frame, count: int) -> list[Any]:
    """Return the results of an ACK, NACK or EXTEND: one per item. Only their number is checked."""
    value = frame[2] if len(frame) > 2 else None
    if type(value) is not list or len(value) != count:
        raise ProtocolError(f"expected an array of {count} results, got {str(value)[:100]}")
    return value


def lost_ranges(result: object) -> list[tuple[bytes, int]] | None:
    """Return the lost `(base, count)` ranges in one result of an ACK or NACK; None if it succeeded, [] for the whole
    lease."""
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
