"""Requests of producers and consumers: what they ask of a connection, a topic's partition or a lease.

Each class is one frame type: its fields in wire order, `parse` (server: from a decoded frame;
InvalidRequest says which field is wrong) and `frame(request_id)` (client: the bytes). The grammar of all
of them:

    HELLO        1 [version u32, client_name str, options map]
    METADATA     2 [topics array of str | nil (all)]
    PRODUCE      3 [topic, partition, producer_id u64, epoch u32, sequence u64, on_conflict, batch bin]
    SUBSCRIBE    4 [subscription_id, topic, group, consumer_id, credit, lease_ms | nil, start,
                    held [[group_number, partition, token]...]]
    UNSUBSCRIBE  5 [subscription_id]
    CREDIT       6 [subscription_id, more]                      request id 0, no reply
    ACK          9 [group_number, partition, [[token, what]...]]
    NACK        10 [group_number, partition, [[token, what, delay_ms | nil, error str | nil(, begun bool)]...]]
    EXTEND      11 [group_number, partition, [[token, lease_ms]...]]
    PING        17 []
    LEASE       22 [topic, group, consumer_id, max, wait_ms, lease_ms | nil, start, ack bool]
                    its messages come as DELIVER frames with the id of the request, before the reply [count]

    on_conflict = 0 reject | 1 replace | 2 ignore, for messages whose unique key is taken
    start   = "earliest" | "latest" | instant int (epoch ms) | bin16 (the first offset)
    what    = nil (the whole lease) | [[base offset bin16, count int | bitmap bin]...]
    bitmap  = bit i of byte i // 8, least significant first, is base + i places

They are named tuples, not dataclasses: frozen as well, and made in a third of the time, which counts in
frames of one message. Nothing here looks at single messages: a batch is opaque bytes and `what` is checked
per range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import WrongVersion
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.offsets import PLACE_BITS, PLACE_STEP
from sandq.protocol.fields import (
    OFFSET_BYTES,
    PARTITION_MAX,
    U32_MAX,
    U48_MAX,
    Field,
    Shape,
    check_choice,
    check_offset,
    check_row,
)
from sandq.protocol.frames import ITEMS_MAX, PROTOCOL_VERSION, Frame, Type, encode_frame, encode_with_tail

What = list[list[Any]] | None
"""Which messages of a lease: None for all, or `[base offset, count | bitmap]` ranges."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
START = Field("start", (str, int, bytes), maximum=U48_MAX)
"""Where a group begins: EARLIEST, LATEST, an instant or an offset."""
REJECT: Final = 0
REPLACE: Final = 1
IGNORE: Final = 2
LEASE_WAIT_MAX_MS: Final = 60_000
"""A LEASE waits for messages for so long, at most."""
RANGE_MESSAGES: Final = DEFAULT.batch_messages  # a range lies within one batch
_BITMAP_BYTES = RANGE_MESSAGES // 8

_HELLO = Shape("HELLO", Field("version", int, maximum=U32_MAX), Field("client_name", str), Field("options", dict))


class Hello(NamedTuple):
    """The first frame of a connection. `options` is for later: none is defined, and unknown ones are ignored."""

    version: int
    client_name: str
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> Hello:
        """WrongVersion when the other side speaks another version, whatever else its frame holds."""
        if len(frame) > 2 and type(frame[2]) is int and frame[2] != PROTOCOL_VERSION:
            raise WrongVersion(
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, the client {frame[2]}",
                version=PROTOCOL_VERSION,
            )
        _HELLO.check(frame)
        if len(frame[3]) > DEFAULT.consumer_id_chars:
            raise _HELLO.wrong(2, f"{len(frame[3])} characters; {DEFAULT.consumer_id_chars} is the limit")
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.HELLO, request_id, *self)


_METADATA = Shape("METADATA", Field("topics", list, optional=True))


class Metadata(NamedTuple):
    """Nodes and topics; `topics` None means all."""

    topics: Sequence[str] | None

    @classmethod
    def parse(cls, frame: Frame) -> Metadata:
        _METADATA.check(frame)
        for item, name in enumerate(frame[2] or (), 1):
            if type(name) is not str:
                raise _METADATA.wrong(1, f"item {item}: expected str")
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.METADATA, request_id, *self)


_PRODUCE = Shape(
    "PRODUCE",
    Field("topic", str),
    Field("partition", int, maximum=PARTITION_MAX),
    Field("producer_id", int),
    Field("epoch", int, maximum=U32_MAX),
    Field("sequence", int),
    Field("on_conflict", int, maximum=IGNORE),
    Field("batch", bytes),
)


class Produce(NamedTuple):
    """One batch for one partition. Producer id 0: not idempotent, and epoch and sequence are 0 too; else see
    `model.sequence` for what `sequence` says.

    `on_conflict`: what becomes of a message whose unique key is taken. REJECT: it is refused; REPLACE: the one that
    has the key is cancelled; IGNORE: it is left out, and answered with the id of the one that has the key.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    sequence: int
    on_conflict: int
    batch: bytes

    @classmethod
    def parse(cls, frame: Frame) -> Produce:
        _PRODUCE.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_with_tail((Type.PRODUCE, request_id, *self[:-1]), self.batch)


_SUBSCRIBE = Shape(
    "SUBSCRIBE",
    Field("subscription_id", int),
    Field("topic", str),
    Field("group", str),
    Field("consumer_id", str),
    Field("credit", int, maximum=DEFAULT.credit_max),
    Field("lease_ms", int, optional=True, maximum=U48_MAX),
    START,
    Field("held", list),
)


class Subscribe(NamedTuple):
    """Join a group on this node. `subscription_id` is the client's: unique in the connection, no request's id."""

    subscription_id: int
    topic: str
    group: str
    consumer_id: str
    credit: int
    lease_ms: int | None
    start: str | int | bytes
    held: Sequence[Sequence[int]]

    @classmethod
    def parse(cls, frame: Frame) -> Subscribe:
        _SUBSCRIBE.check(frame)
        consumer_id, held = frame[5], frame[9]
        if not 1 <= len(consumer_id) <= DEFAULT.consumer_id_chars:
            raise _SUBSCRIBE.wrong(4, f"{len(consumer_id)} characters; 1..{DEFAULT.consumer_id_chars} are allowed")
        check_start(_SUBSCRIBE, 7, frame[8])
        for item, row in enumerate(held, 1):
            check_row(_SUBSCRIBE, 8, row, item, [int, int, int], "[group number, partition, token]")
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.SUBSCRIBE, request_id, *self)


_UNSUBSCRIBE = Shape("UNSUBSCRIBE", Field("subscription_id", int))


class Unsubscribe(NamedTuple):
    """Leave cleanly: the subscription's leases are given back, and their attempt is not counted."""

    subscription_id: int

    @classmethod
    def parse(cls, frame: Frame) -> Unsubscribe:
        _UNSUBSCRIBE.check(frame)
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.UNSUBSCRIBE, request_id, *self)


_LEASE = Shape(
    "LEASE",
    Field("topic", str),
    Field("group", str),
    Field("consumer_id", str),
    Field("max", int, minimum=1, maximum=FIXED.grant_messages),
    Field("wait_ms", int, maximum=LEASE_WAIT_MAX_MS),
    Field("lease_ms", int, optional=True),
    START,
    Field("ack", bool),
)


class Lease(NamedTuple):
    """Lease what is due now, or what is first due within `wait_ms`. `consumer_id` is this request's alone. `ack`: the
    messages are acked before they are sent. UNSUBSCRIBE with the id of the request ends the wait."""

    topic: str
    group: str
    consumer_id: str
    max: int
    wait_ms: int
    lease_ms: int | None
    start: str | int | bytes
    ack: bool

    @classmethod
    def parse(cls, frame: Frame) -> Lease:
        _LEASE.check(frame)
        if not 1 <= len(frame[4]) <= DEFAULT.consumer_id_chars:
            raise _LEASE.wrong(3, f"{len(frame[4])} characters; 1..{DEFAULT.consumer_id_chars} are allowed")
        check_start(_LEASE, 7, frame[8])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.LEASE, request_id, *self)


_CREDIT = Shape("CREDIT", Field("subscription_id", int), Field("more", int, maximum=DEFAULT.credit_max))


class Credit(NamedTuple):
    """`more` messages may be pushed beyond those allowed before. No reply."""

    subscription_id: int
    more: int

    @classmethod
    def parse(cls, frame: Frame) -> Credit:
        _CREDIT.check(frame)
        return cls(frame[2], frame[3])

    def frame(self, request_id: int = 0) -> bytes:
        return encode_frame(Type.CREDIT, request_id, *self)


_ACK = Shape("ACK", Field("group_number", int), Field("partition", int, maximum=PARTITION_MAX), Field("items", list))


class Ack(NamedTuple):
    """Done with messages of leases of one group and partition. Items: `[token, what]`."""

    group_number: int
    partition: int
    items: list[list[Any]]

    @classmethod
    def parse(cls, frame: Frame) -> Ack:
        _ACK.check(frame)
        for item, row in enumerate(frame[4], 1):
            if type(row) is not list or len(row) != 2 or type(row[0]) is not int or row[0] < 0:
                raise _ACK.wrong(3, f"item {item}: expected [token, what]")
            if row[1] is not None:
                row[1] = ranges_of(_ACK, item, row[1])
        return cls(frame[2], frame[3], frame[4])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.ACK, request_id, *self)


_NACK = Shape("NACK", Field("group_number", int), Field("partition", int, maximum=PARTITION_MAX), Field("items", list))


class Nack(NamedTuple):
    """Give messages back. Items: `[token, what, delay_ms | nil (the topic's back-off), error | nil]`; with a fifth
    field, `False`, they were not begun: they are ready at once, and the attempt is not counted."""

    group_number: int
    partition: int
    items: list[list[Any]]

    @classmethod
    def parse(cls, frame: Frame) -> Nack:
        _NACK.check(frame)
        for item, row in enumerate(frame[4], 1):
            if type(row) is not list or len(row) not in (4, 5) or type(row[0]) is not int or row[0] < 0:
                raise _NACK.wrong(3, f"item {item}: expected [token, what, delay_ms, error], and perhaps begun")
            if type(row[-1]) is not bool and len(row) == 5:
                raise _NACK.wrong(3, f"item {item}: begun must be bool")
            if row[1] is not None:
                row[1] = ranges_of(_NACK, item, row[1])
            if row[2] is not None and (type(row[2]) is not int or not 0 <= row[2] <= U48_MAX):
                raise _NACK.wrong(3, f"item {item}: delay_ms must be nil or an int within 0..{U48_MAX}")
            if row[3] is not None and (type(row[3]) is not str or len(row[3]) > FIXED.error_chars):
                raise _NACK.wrong(3, f"item {item}: error must be nil or str of {FIXED.error_chars} characters")
        return cls(frame[2], frame[3], frame[4])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.NACK, request_id, *self)


_EXTEND = Shape(
    "EXTEND", Field("group_number", int), Field("partition", int, maximum=PARTITION_MAX), Field("items", list)
)


class Extend(NamedTuple):
    """Move deadlines of leases to now + lease_ms. Items: `[token, lease_ms]`."""

    group_number: int
    partition: int
    items: list[list[int]]

    @classmethod
    def parse(cls, frame: Frame) -> Extend:
        _EXTEND.check(frame)
        for item, row in enumerate(frame[4], 1):
            check_row(_EXTEND, 3, row, item, [int, int], "[token, lease_ms]")
            if row[1] > U48_MAX:
                raise _EXTEND.wrong(3, f"item {item}: lease_ms {row[1]} is not within 0..{U48_MAX}")
        return cls(frame[2], frame[3], frame[4])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.EXTEND, request_id, *self)


_PING = Shape("PING")


class Ping(NamedTuple):
    """Are you there, and what is your time?"""

    @classmethod
    def parse(cls, frame: Frame) -> Ping:
        _PING.check(frame)
        return cls()

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.PING, request_id)


def check_start(shape: Shape, number: int, start: str | int | bytes) -> None:
    """Raise unless field `number` is a place in time; its type and bounds are checked already."""
    if type(start) is bytes:
        check_offset(shape, number, start)
    elif type(start) is str:
        check_choice(shape, number, start, (EARLIEST, LATEST))


def ranges_of(shape: Shape, item: int, what: object) -> list[list[Any]]:
    """`what` of an ACK's or NACK's item, with ranges that follow one another made one: who names each message by itself
    names runs, most often. Raises unless it is an array of `[offset, count | bitmap]`."""
    if type(what) is not list or not 1 <= len(what) <= ITEMS_MAX:
        raise shape.wrong(3, f"item {item}: what must be nil or an array of one or more ranges")
    ranges: list[list[Any]] = []
    add, number_of = ranges.append, int.from_bytes
    behind = -1
    for row in what:
        if type(row) is list and len(row) == 2 and type(row[0]) is bytes and len(row[0]) == OFFSET_BYTES:
            offset, extent = row
            if type(extent) is int and 1 <= extent <= RANGE_MESSAGES:
                number = number_of(offset, "big")
                if number == behind and number & PLACE_BITS and ranges[-1][1] + extent <= RANGE_MESSAGES:
                    ranges[-1][1] += extent
                else:
                    add([offset, extent])
                behind = number + extent * PLACE_STEP
                continue
            if type(extent) is bytes and 1 <= len(extent) <= _BITMAP_BYTES:
                add(row)
                behind = -1
                continue
        raise shape.wrong(
            3,
            f"item {item}: a range must be [offset of {OFFSET_BYTES} bytes, count 1..{RANGE_MESSAGES}"
            f" | bitmap of 1..{_BITMAP_BYTES} bytes]",
        )
    return ranges
