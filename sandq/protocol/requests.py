"""Requests of producers and consumers, about a connection, a topic's partition or a lease.

Items of ACK and NACK name the messages of a lease. `what` is nil (the whole lease) or `[[base offset bin16, count int |
bitmap bin]...]`. Bit i of a bitmap is in byte i // 8, least significant bit first, and names the offset base + i
positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub
from typing import Annotated, Any, Final, NamedTuple, Self

from sandq.model.access import parse_grant
from sandq.model.batch_format import Column
from sandq.model.errors import InvalidRequest, ProtocolError, WrongVersion
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.nack_ends import DEAD, ENDS, RETRY, SNOOZE
from sandq.model.offsets import PLACE_BITS, PLACE_STEP
from sandq.model.pauses import PARTS
from sandq.model.retries import UNLIMITED, is_backoff, is_cost, is_max_attempts
from sandq.model.topic_patterns import problem_of
from sandq.protocol.fields import OFFSET_BYTES, PARTITION_MAX, U48_MAX
from sandq.protocol.frames import PROTOCOL_VERSION, Frame, Type, encode_frame, encode_with_tail
from sandq.protocol.proofs import PROOF_BYTES
from sandq.protocol.request import (
    U32,
    U48,
    Bounds,
    Offset,
    Partition,
    Request,
    characters,
    choice,
    each,
    length,
    row_of,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
REJECT: Final = 0
REPLACE: Final = 1
IGNORE: Final = 2
REPLACE_PENDING: Final = 3
DEBOUNCE: Final = 4
THROTTLE: Final = 5
THROTTLE_BOTH: Final = 6
MAX_WAIT_MS: Final = 10 * 366 * 86_400_000
"""Greatest maximum wait of messages with DEBOUNCE, in ms: ten years."""
LEASE_WAIT_MAX_MS: Final = 60_000
"""Maximum time that a LEASE waits for messages, in ms."""
RANGE_MESSAGES: Final = DEFAULT.batch_messages  # a range lies within one batch
RANGES_MAX: Final = FIXED.grant_messages  # a lease has no more messages
NAMES_MAX: Final = 1000
"""Maximum number of topic names in one reply."""
ADDRESS_CHARS: Final = 64
"""Maximum length of a host's address: an IPv6 address has 39 characters, plus brackets and a zone."""
PRINCIPAL_CHARS: Final = DEFAULT.consumer_id_chars
_BITMAP_BYTES = RANGE_MESSAGES // 8

Start = Annotated[str, choice(EARLIEST, LATEST)] | U48 | Offset
"""Start of a new group: EARLIEST, LATEST, an instant or an offset."""
ConsumerId = Annotated[str, characters(1, DEFAULT.consumer_id_chars)]
Credits = Annotated[int, Bounds(0, DEFAULT.credit_max)]
EPOCH_MAX: Final = 2**63 - 1
Epoch = Annotated[int, Bounds(1, EPOCH_MAX)]
"""Epoch of a consumer. Each new process of the consumer has a higher epoch than the processes before it."""


def _check_partitions(partitions: Sequence[Any]) -> str | None:
    if not 1 <= len(partitions) <= PARTITION_MAX + 1:
        return f"1..{PARTITION_MAX + 1} partitions are allowed, not {len(partitions)}"
    if not all([type(partition) is int and 0 <= partition <= PARTITION_MAX for partition in partitions]):
        return f"expected numbers within 0..{PARTITION_MAX}"
    return None if len({*partitions}) == len(partitions) else "a partition is named twice"


Partitions = Annotated[Sequence[int], _check_partitions]
"""Some partitions of a topic, each once."""


class Hello(Request, type=Type.HELLO):
    """The first frame of a connection. `options`: `gateway`, a nonce, requests a challenge for a proof; unknown options
    are ignored."""

    version: U32
    client_name: Annotated[str, characters(0, DEFAULT.consumer_id_chars)]
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the frame. Raise WrongVersion if the client uses another version, without checking the other fields."""
        if len(frame) > 2 and type(frame[2]) is int and frame[2] != PROTOCOL_VERSION:
            raise WrongVersion(
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, the client {frame[2]}",
                version=PROTOCOL_VERSION,
            )
        return cls.checked(frame)

    def __repr__(self) -> str:
        """Return the text without the values of options, because these may identify the client."""
        return f"Hello(version={self.version!r}, client_name={self.client_name!r}, options={[*self.options]!r})"


def _check_name(name: Any) -> str | None:
    return None if type(name) is str else "expected str"


def _check_grant(grant: Any) -> str | None:
    try:
        parse_grant(grant)
    except InvalidRequest as error:
        return error.message
    return None


class Prove(Request, type=Type.PROVE):
    """Prove that the sender is a gateway (`proofs.prove_gateway`). Sent once, after a HELLO that requested a
    challenge."""

    proof: Annotated[bytes, length(PROOF_BYTES)]


class OnBehalf(Request, type=Type.ON_BEHALF):
    """Name the caller of all following requests, until the next ON_BEHALF. Without an address, the gateway itself is
    the caller. Allowed only on a connection that has proved to be a gateway. No reply.

    `grants`: the caller's rights to consume, if they cover only some groups of topics. The gateway checks the caller's
    rights, but only the node knows to which group a lease belongs.
    """

    principal: Annotated[str, characters(1, PRINCIPAL_CHARS)] | None
    address: Annotated[str, characters(1, ADDRESS_CHARS)] | None
    grants: Annotated[Sequence[str], each(_check_grant, FIXED.grants)] | None = None

    def frame(self, request_id: int = 0) -> bytes:
        return super().frame(request_id)


class Metadata(Request, type=Type.METADATA):
    """Return nodes and topics; `topics` None means all."""

    topics: Annotated[Sequence[str], each(_check_name)] | None


def _check_patterns(patterns: Sequence[Any]) -> str | None:
    return problem_of(patterns)


class TopicNames(Request, type=Type.TOPIC_NAMES):
    """Return the names of topics that match one of these patterns, in order, at most `most` of them."""

    patterns: Annotated[Sequence[str], _check_patterns]
    most: Annotated[int, Bounds(1, NAMES_MAX)]


class TopicNamesReply(NamedTuple):
    """The reply to TOPIC_NAMES."""

    names: Sequence[str]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the reply. Raise ProtocolError if it is malformed."""
        names = frame[2] if len(frame) > 2 else None
        if type(names) is not list or not all([type(name) is str for name in names]):
            raise ProtocolError("the answer to TOPIC_NAMES is not a list of names")
        return cls(names)


_SPANS: Final = {
    DEBOUNCE: ("max wait", MAX_WAIT_MS),
    THROTTLE: ("window", FIXED.throttle_window_ms),
    THROTTLE_BOTH: ("window", FIXED.throttle_window_ms),
}
"""By rule: the name of its time, and the maximum of this time in ms."""


def _rule_with_time(value: Sequence[Any]) -> str | None:
    """Check DEBOUNCE with a maximum wait, or a rule that throttles with its window."""
    if len(value) != 2 or not all([type(one) is int for one in value]) or value[0] not in _SPANS:
        return "expected " + " or ".join([f"[{rule}, {name} ms]" for rule, (name, _) in _SPANS.items()])
    name, most_ms = _SPANS[value[0]]
    return None if 1 <= value[1] <= most_ms else f"a {name} of 1..{most_ms} ms is allowed"


class Produce(Request, type=Type.PRODUCE):
    """Store one batch in one partition. Producer id 0: not idempotent, and epoch and sequence are 0, too. Otherwise,
    see `model.sequence` for the meaning of `sequence`.

    `on_conflict` applies to a message whose unique key is taken. The old message is the one that has the key. REJECT:
    the new message is refused. REPLACE: the old message is cancelled; if a group holds it, the new message is refused.
    REPLACE_PENDING: like REPLACE, but the new message is refused if any group has leased the old one. IGNORE: the new
    message is left out, and the reply has the id of the old message. DEBOUNCE: like REPLACE, but if a group holds the
    old message, or all groups are done with it, the new one is stored as well. `[DEBOUNCE, max wait ms]`: the new
    message is also due at most this time after the first message of the series: debounced messages that replaced each
    other before their first attempt.

    `[THROTTLE, window ms]`: in each window, the first message is stored, and the others are left out as with IGNORE. A
    window begins when its message is stored. `[THROTTLE_BOTH, window ms]`: the newest of the other messages is stored,
    too, for the end of the window, where the next window begins. Both are IGNORE if the old message was not throttled.
    """

    topic: str
    partition: Partition
    producer_id: int
    epoch: U32
    sequence: int
    on_conflict: Annotated[int, Bounds(REJECT, DEBOUNCE)] | Annotated[Sequence[int], _rule_with_time]
    batch: bytes

    def frame(self, request_id: int) -> bytes:
        return encode_with_tail((self.type, request_id, *self[:-1]), self.batch)


class Subscribe(Request, type=Type.SUBSCRIBE):
    """Join a group on this node. `subscription_id`: chosen by the client; unique among the subscriptions and requests
    of the connection. `held`: the leases that the consumer believes to hold.

    `epoch`: epoch of the consumer. A subscription with a later epoch ends this one, and takes over its leases.
    `partitions`: the partitions to consume; None: all. `handlers`: number of messages that the consumer processes at
    the same time, in the order of their delivery; None: it may begin all messages at the same time.
    """

    subscription_id: int
    topic: str
    group: str
    consumer_id: ConsumerId
    credit: Credits
    lease_ms: U48 | None
    start: Start
    held: Annotated[Sequence[Sequence[int]], each(row_of("[group number, partition, token]", int, int, int))]
    epoch: Epoch | None = None
    partitions: Partitions | None = None
    handlers: Annotated[int, Bounds(1, FIXED.handlers)] | None = None


class Unsubscribe(Request, type=Type.UNSUBSCRIBE):
    """Leave a group cleanly. The subscription's leases are given back, and their attempt is not counted."""

    subscription_id: int


class Lease(Request, type=Type.LEASE):
    """Lease messages that are due now, or the first that become due within `wait_ms`.

    `consumer_id` is used only by this request, so that all its messages can be given back together. `ack`: the messages
    are acked before they are sent. UNSUBSCRIBE with the id of the request ends the wait. `partitions`: the partitions
    to lease from; None: all.
    """

    topic: str
    group: str
    consumer_id: ConsumerId
    max: Annotated[int, Bounds(1, FIXED.grant_messages)]
    wait_ms: Annotated[int, Bounds(0, LEASE_WAIT_MAX_MS)]
    lease_ms: int | None
    start: Start
    ack: bool
    partitions: Partitions | None = None


class Credit(Request, type=Type.CREDIT):
    """Allow the node to push `more` additional messages. If negative, allow fewer than before. No reply."""

    subscription_id: int
    more: Annotated[int, Bounds(-DEFAULT.credit_max, DEFAULT.credit_max)]

    def frame(self, request_id: int = 0) -> bytes:
        return encode_frame(self.type, request_id, *self)


class Ack(Request, type=Type.ACK):
    """Ack messages of leases of one group and partition. Items: `[token, what]`."""

    group_number: int
    partition: Partition
    items: list[list[Any]]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        # Fast path, because there are many items, and most of them ack a whole lease.
        others = [
            (item, row)
            for item, row in enumerate(request.items, 1)
            if type(row) is not list or len(row) != 2 or type(row[0]) is not int or row[0] < 0 or row[1] is not None
        ]
        for item, row in others:
            if type(row) is not list or len(row) != 2 or type(row[0]) is not int or row[0] < 0:
                raise cls.wrong("items", f"item {item}: expected [token, what]")
            row[1] = ranges_of(cls, item, row[1])
        return request


_THEN_BYTES: Final = ("value", "key", "headers", "backoff")
_THEN_INTS: Final = ("ttl_ms", "priority", "max_attempts", "cost")


def _check_then(row: Any) -> str | None:
    """Return what is wrong with a message that an ack sends. None if it is valid."""
    if type(row) is not list or [type(cell) for cell in row[2:]] != [bool, dict]:
        return "expected [topic | nil, time | nil, is a delay, message]"
    topic, at_ms, is_delay, message = row
    if topic is not None and type(topic) is not str:
        return "topic must be str or nil"
    if at_ms is None and is_delay:
        return "a delay without a time"
    if at_ms is not None and (type(at_ms) is not int or not 0 <= at_ms <= U48_MAX):
        return f"time must be nil or an int within 0..{U48_MAX}"
    for name, value in message.items():
        kind = bytes if name in _THEN_BYTES else int if name in _THEN_INTS else str if name == "tenant" else None
        if kind is None or type(value) is not kind:
            return f"{str(name)[:40]!r} is no field of a message, or has a wrong value"
    if not 0 < message.get("ttl_ms", 1) <= U48_MAX:
        return "ttl_ms is out of range"
    if not is_priority(message.get("priority", 0)):
        return "priority is out of range"
    if not is_max_attempts(message.get("max_attempts", UNLIMITED)):
        return "max_attempts is out of range"
    if not is_cost(message.get("cost", 1)):
        return "cost is out of range"
    if "backoff" in message and not is_backoff(message["backoff"]):
        return "backoff is not valid"
    return None


class AckThen(Request, type=Type.ACK_THEN):
    """Ack messages of one lease, like ACK, and send other messages in the same atomic step. Messages: `[topic | nil
    (that of the lease), time | nil (at once), whether it is a delay, {value, key, headers bin, ttl_ms, priority int,
    tenant str, max_attempts int, backoff bin, cost int}]`; each field of the map may be missing.

    With an `end` (`model.nack_ends`), one message is nacked instead, with `delay_ms` and `error` as in NACK. The other
    messages are then sent only if it is dead.
    """

    group_number: int
    partition: Partition
    token: int
    what: list[Any] | None
    messages: Annotated[list[list[Any]], each(_check_then, FIXED.then_messages)]
    end: Annotated[int, Bounds(RETRY, SNOOZE)] | None = None
    delay_ms: U48 | None = None
    error: str | None = None

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        if request.delay_ms is not None and request.end in (None, DEAD):
            raise cls.wrong("delay_ms", "only messages that are retried have a delay")
        if request.error is not None and (request.end is None or len(request.error) > FIXED.error_chars):
            raise cls.wrong("error", f"nil is expected, or with an end str of {FIXED.error_chars} characters")
        if request.what is not None:
            request = request._replace(what=ranges_of(cls, 1, request.what))
        if request.end is not None and (request.what is None or [extent for _, extent in request.what] != [1]):
            raise cls.wrong("what", "a nack that sends messages names one message: [[offset, 1]]")
        return request


def is_priority(value: object) -> bool:
    """Return whether a value is a valid priority."""
    return type(value) is int and FIXED.priority_least <= value <= FIXED.priority_most


CHANGES: Final = {"priority": Column.PRIORITY.value, "headers": Column.HEADERS.value}
"""Fields that a nack may change in its messages, and their columns."""


def _is_change(changes: Any) -> bool:
    """Return whether this is a valid map of changes in a nack. Frames have no maps with numbers as keys."""
    if type(changes) is not dict or not changes or not changes.keys() <= CHANGES.keys():
        return False
    return is_priority(changes.get("priority", 0)) and type(changes.get("headers", b"")) is bytes


class NackItem(NamedTuple):
    """An item of a NACK, with named fields: `NackItem(*item)`. On the wire and in the log, the last three fields may be
    missing."""

    token: int
    what: Any
    """Ranges of messages. None: all messages of the lease."""
    delay_ms: int | None
    """Delay until the next attempt; None: the back-off of the topic."""
    error: str | None
    is_begun: bool = True
    changes: Mapping[Any, Any] | None = None
    """Changes of the messages, by name in a request, by column in a command."""
    end: int | None = None
    """How the attempt ends (`model.nack_ends`)."""


class Nack(Request, type=Type.NACK):
    """Give messages back. Items: `[token, what, delay_ms | nil (the topic's back-off), error | nil]`, and up to three
    further fields.

    The fifth field is `False` if the messages were not begun: they are ready after the delay (nil: immediately), and
    neither the attempt nor a snooze counts. The sixth field is a map with a new `priority`, new `headers` (packed;
    empty: none), or both, which apply in the group from then on. The seventh field says how the attempt ends
    (`model.nack_ends`); the sixth may then be nil. RETRY is the default. DEAD: the messages are dead immediately, with
    the error, and are not changed. SNOOZE: they are retried, and the attempt does not count.
    """

    group_number: int
    partition: Partition
    items: list[list[Any]]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the request. Raise InvalidRequest for the first wrong item."""
        request = cls.checked(frame)
        for item, row in enumerate(request.items, 1):
            if type(row) is not list or not 4 <= len(row) <= 7 or type(row[0]) is not int or row[0] < 0:
                raise cls.wrong("items", f"item {item}: expected [token, what, delay_ms, error, begun, changes, end]")
            if len(row) > 4:
                _check_further_fields(cls, item, row)
            if row[1] is not None:
                row[1] = ranges_of(cls, item, row[1])
            if row[2] is not None and (type(row[2]) is not int or not 0 <= row[2] <= U48_MAX):
                raise cls.wrong("items", f"item {item}: delay_ms must be nil or an int within 0..{U48_MAX}")
            if row[3] is not None and (type(row[3]) is not str or len(row[3]) > FIXED.error_chars):
                raise cls.wrong("items", f"item {item}: error must be nil or str of {FIXED.error_chars} characters")
        return request


def _check_further_fields(cls: type[Nack], item: int, row: list[Any]) -> None:
    """Check `begun`, `changes` and `end` of an item: `changes` and `end` only for begun messages."""
    if type(row[4]) is not bool:
        raise cls.wrong("items", f"item {item}: begun must be bool")
    if len(row) > 6:
        _check_attempt_end(cls, item, row)
    has_changes = len(row) == 6 or (len(row) > 6 and row[5] is not None)
    if has_changes and (not row[4] or not _is_change(row[5])):
        raise cls.wrong("items", f"item {item}: changes must be {{priority: int, headers: bin}}, with begun")


def _check_attempt_end(cls: type[Nack], item: int, row: list[Any]) -> None:
    """Check the `end` of an item: RETRY, DEAD or SNOOZE, only for begun messages. DEAD allows neither a delay nor
    changes."""
    end = row[6]
    if type(end) is not int or end not in ENDS:
        raise cls.wrong("items", f"item {item}: end must be {RETRY} (retry), {DEAD} (dead) or {SNOOZE} (snooze)")
    if not row[4]:
        raise cls.wrong("items", f"item {item}: end needs begun")
    if end == DEAD and (row[2] is not None or row[5] is not None):
        raise cls.wrong("items", f"item {item}: end {DEAD} (dead) allows neither delay_ms nor changes")


_is_extension = row_of("[token, lease_ms] or [token, lease_ms, begun]", int, int)


def _check_extension(item: Any) -> str | None:
    problem = _is_extension(item[:2] if type(item) is list and len(item) == 3 else item)
    if problem is None and item[1] > U48_MAX:
        return f"lease_ms {item[1]} is not within 0..{U48_MAX}"
    return problem


class Extend(Request, type=Type.EXTEND):
    """Move the deadlines of leases to now + lease_ms. Items: `[token, lease_ms]`. A third field has the ranges of
    messages that the consumer has begun: if the lease ends unsettled, these messages have used an attempt."""

    group_number: int
    partition: Partition
    items: Annotated[list[list[Any]], each(_check_extension)]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        for item, row in enumerate(request.items, 1):
            if len(row) > 2:
                row[2] = ranges_of(cls, item, row[2])
        return request


PAUSES: Final = 1
"""Maximum number of items of a LEASE_PAUSE."""
_is_pause = row_of("[token, offset, part, for ms, group]", int, bytes, str, int, str)


def _check_pause(item: Any) -> str | None:
    problem = _is_pause(item)
    if problem is None and len(item[1]) != OFFSET_BYTES:
        return f"an offset has {OFFSET_BYTES} bytes, not {len(item[1])}"
    if problem is None and item[2] not in PARTS:
        return f"part must be one of {', '.join(PARTS)}"
    if problem is None and item[3] > U48_MAX:
        return f"for_ms {item[3]} is not within 0..{U48_MAX}"
    return problem


class LeasePause(Request, type=Type.LEASE_PAUSE):
    """Pause the `tenant`, the `key` or the `group` of leased messages, or the named `limit` of the group, for a time.
    A pause that ends later stays as it is. Items: `[token, offset, part, for_ms, group]`. `group`: name of the
    group that holds the lease."""

    group_number: int
    partition: Partition
    items: Annotated[list[list[Any]], each(_check_pause, PAUSES)]


class Ping(Request, type=Type.PING):
    """Check that the node responds, and return its time."""


Settling = Ack | Nack | AckThen | Extend
"""Requests that name messages of leases by ranges."""
MANY: Final = 64
"""For at least this many ranges, `_are_apart` is tried first."""


def ranges_of(cls: type[Settling], item: int, what: object) -> list[list[Any]]:
    """Return the ranges of an item of an ACK or NACK, with adjacent ranges merged. Raise unless `what` is an array of
    `[offset, count | bitmap]`.

    Clients that name each message by itself usually name runs of adjacent messages.
    """
    field = "what" if cls is AckThen else "items"
    if type(what) is not list or not 1 <= len(what) <= RANGES_MAX:
        wanted = "begun must be" if cls is Extend else "what must be nil or"
        raise cls.wrong(field, f"item {item}: {wanted} an array of 1 to {RANGES_MAX} ranges")
    if len(what) >= MANY and _are_apart(what):
        return what
    ranges: list[list[Any]] = []
    add, number_of = ranges.append, int.from_bytes
    behind = -1
    for row in what:
        if type(row) is list and len(row) == 2:
            offset, extent = row
            if type(offset) is bytes and len(offset) == OFFSET_BYTES:
                number = number_of(offset, "big")
                if type(extent) is int and 1 <= extent <= RANGE_MESSAGES:
                    # A range that begins directly after the previous one is merged with it. A position of 0 is no
                    # continuation: the addition has carried into the index of the entry.
                    if extent > 1:
                        _check_end(cls, item, number, extent)
                    if number == behind and number & PLACE_BITS and ranges[-1][1] + extent <= RANGE_MESSAGES:
                        ranges[-1][1] += extent
                    else:
                        add([offset, extent])
                    behind = number + extent * PLACE_STEP
                    continue
                if type(extent) is bytes and 1 <= len(extent) <= _BITMAP_BYTES:
                    _check_end(cls, item, number, number_of(extent, "little").bit_length())
                    add(row)
                    behind = -1
                    continue
        raise cls.wrong(
            field,
            f"item {item}: a range must be [offset of {OFFSET_BYTES} bytes, count 1..{RANGE_MESSAGES}"
            f" | bitmap of 1..{_BITMAP_BYTES} bytes]",
        )
    return ranges


def _are_apart(what: list[Any]) -> bool:
    """Return whether these are single messages of which no two are adjacent. This is true for most batches of scheduled
    messages. Checking all ranges together takes half as long."""
    if {*map(type, what)} != {list} or {*map(len, what)} != {2}:
        return False
    named, extents = zip(*what, strict=True)
    if {*map(type, extents)} != {int} or {*extents} != {1} or {*map(type, named)} != {bytes}:
        return False
    if {*map(len, named)} != {OFFSET_BYTES}:
        return False
    number_of = int.from_bytes
    if number_of(named[1], "big") - number_of(named[0], "big") == PLACE_STEP:
        return False  # most other messages are then adjacent, too
    numbers = [number_of(one, "big") for one in named]
    return PLACE_STEP not in map(sub, numbers[1:], numbers)


def _check_end(cls: type[Settling], item: int, number: int, count: int) -> None:
    """Raise if a range ends after the last position. Check this before proposing: when the entry is applied, earlier
    items would already be done."""
    if (number & PLACE_BITS) + (count - 1) * PLACE_STEP > PLACE_BITS:
        raise cls.wrong(
            "what" if cls is AckThen else "items",
            f"item {item}: a range of {count} places ends after the last place there is",
        )
