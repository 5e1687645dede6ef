"""Serf's data inside memberlist's messages: tags in a node's meta, and user messages.

        meta        0xFF | msgpack map of tags; without the 0xFF: only the role, as old agents send it
        message     type u8 | msgpack map of Go's field names

The messages by type:

    0       leave intent            LTime, Node, Prune
    1       join intent             LTime, Node
    2       state, in a push-pull   LTime, StatusLTimes, LeftMembers, EventLTime, Events, QueryLTime
    3 to 9  event, query, answers, keys, relay: not read here

LTime is a Lamport time of 64 bits. Members, events and queries have a clock each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from sandq.gossip.fields import META_BYTES, U64_MAX, Fields, as_name, flag, name, number, pack, unpack, unreadable
from sandq.gossip.steps import Steps, at_once
from sandq.model.errors import InvalidRequest, ProtocolError, TooLarge

LEAVE: Final = 0
JOIN: Final = 1
STATE: Final = 2
LTIME_MAX: Final = U64_MAX
MEMBERS_MOST: Final = 10_000
"""Maximum number of names in each of the two lists of a state."""
NAMES_AT_ONCE: Final = 256
"""Number of names that are written in one step."""
NAMES_WORK: Final = 64
"""Units of work of such a step."""
PIECE_BYTES: Final = 32 << 10
"""Number of bytes of a state that are read in one step."""
PIECE_WORK: Final = 128
"""Units of work of such a step."""
TAGS_MAGIC: Final = 0xFF
TAGS_MOST: Final = META_BYTES // 2

_NIL = 0xC0


@dataclass(frozen=True, slots=True)
class LeaveIntent:
    """`node` is about to leave, or was removed by an operator. `prune`: forget it at once."""

    ltime: int
    node: str
    prune: bool


@dataclass(frozen=True, slots=True)
class JoinIntent:
    """`node` has joined."""

    ltime: int
    node: str


@dataclass(frozen=True, slots=True)
class SerfState:
    """The clocks of a member, the times of the last status change of each known member, and the members that left."""

    ltime: int
    status_ltimes: Mapping[str, int]
    left_members: Sequence[str]
    event_ltime: int
    query_ltime: int


@dataclass(frozen=True, slots=True)
class OtherSerf:
    """A message of a type that sandq does not read."""

    kind: int


SerfMessage = LeaveIntent | JoinIntent | SerfState | OtherSerf


# ------------------------------------------------------------------------------------------------------------- tags


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Return a node's meta; the same tags give the same bytes. Raises TooLarge for more than `META_BYTES`."""
    try:
        meta = bytes((TAGS_MAGIC,)) + pack(dict(sorted(tags.items())))
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"a tag is no text: {error}") from None
    if len(meta) > META_BYTES:
        sizes = ", ".join(f"{key} {len(pack({key: value})) - 1}" for key, value in sorted(tags.items()))
        raise TooLarge(
            f"the tags take {len(meta)} bytes, {META_BYTES} are allowed; bytes of each: {sizes[:1000]}",
            limit="tags_bytes",
            maximum=META_BYTES,
            size=len(meta),
        )
    return meta


def decode_tags(meta: bytes) -> dict[str, str]:
    """Return the tags in a node's meta; {} if it is empty. Raises ProtocolError."""
    if not meta:
        return {}
    try:
        if meta[0] != TAGS_MAGIC:
            return {"role": meta.decode()}
        if len(meta) > META_BYTES:
            raise ProtocolError(f"tags of {len(meta)} bytes, {META_BYTES} are allowed")
        return {key.decode(): _tag(value).decode() for key, value in _tags(meta[1:]).items()}
    except UnicodeDecodeError:
        raise ProtocolError(f"tags that are no UTF-8: {meta!r:.80}") from None


def _tags(packed: bytes) -> Fields:
    return {} if packed == bytes((_NIL,)) else unpack(packed, TAGS_MOST)


def _tag(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ProtocolError(f"a tag is {value!r:.40}, text is expected")
    return value


# --------------------------------------------------------------------------------------------------------- messages


def encode_serf(message: LeaveIntent | JoinIntent | SerfState) -> bytes:
    """Return the type byte and the body."""
    if isinstance(message, LeaveIntent):
        return b"\x00" + pack({"LTime": message.ltime, "Node": message.node, "Prune": message.prune})
    if isinstance(message, JoinIntent):
        return b"\x01" + pack({"LTime": message.ltime, "Node": message.node})
    return at_once(encoding_serf(message))


def encoding_serf(state: SerfState) -> Steps[bytes]:
    """Encode a state in steps, since it has the names of all members."""
    packer = msgpack.Packer(use_bin_type=False, autoreset=False)
    packer.pack_map_header(6)
    packer.pack("LTime")
    packer.pack(state.ltime)
    packer.pack("StatusLTimes")
    packer.pack_map_header(len(state.status_ltimes))
    for at, (member, ltime) in enumerate(state.status_ltimes.items(), 1):
        packer.pack(member)
        packer.pack(ltime)
        if not at % NAMES_AT_ONCE:
            yield NAMES_WORK
    packer.pack("LeftMembers")
    packer.pack_array_header(len(state.left_members))
    for at, member in enumerate(state.left_members, 1):
        packer.pack(member)
        if not at % NAMES_AT_ONCE:
            yield NAMES_WORK
    for key, value in (("EventLTime", state.event_ltime), ("Events", []), ("QueryLTime", state.query_ltime)):
        packer.pack(key)
        packer.pack(value)
    packed: bytes = packer.bytes()
    return bytes((STATE,)) + packed


def decode_serf(body: bytes) -> SerfMessage:
    """Decode the body of a `User`, or the user state of a `PushPull`. Raises ProtocolError."""
    return at_once(decoding_serf(body))


def decoding_serf(body: bytes) -> Steps[SerfMessage]:
    """Like `decode_serf`, in steps."""
    if not body:
        raise ProtocolError("a Serf message without a byte")
    kind = body[0]
    try:
        if kind == LEAVE:
            fields = unpack(body[1:])
            return LeaveIntent(number(fields, b"LTime", LTIME_MAX), name(fields, b"Node"), flag(fields, b"Prune"))
        if kind == JOIN:
            fields = unpack(body[1:])
            return JoinIntent(number(fields, b"LTime", LTIME_MAX), name(fields, b"Node"))
        if kind == STATE:
            return (yield from _state(body[1:]))
    except ProtocolError as error:
        raise ProtocolError(f"a Serf message of type {kind}: {error}") from None
    return OtherSerf(kind)


def _state(body: bytes) -> Steps[SerfState]:
    # In pieces, because it may contain thousands of names, and of events, which are not needed here.
    try:
        fields = yield from _StateReader(body).fields()
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises a dozen different exceptions
        raise unreadable(error) from None
    return SerfState(
        number(fields, b"LTime", LTIME_MAX),
        fields.get(b"StatusLTimes", {}),
        fields.get(b"LeftMembers", ()),
        number(fields, b"EventLTime", LTIME_MAX, 0),
        number(fields, b"QueryLTime", LTIME_MAX, 0),
    )


class _StateReader:
    """Reads a state's map key by key; exceptions of msgpack are passed to the caller."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        # Known arrays and maps contain no arrays or maps, so these limits are 0; `_size` checks their own lengths.
        self._unpacker = msgpack.Unpacker(
            raw=True, max_buffer_size=len(body), max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._fed = 0

    def fields(self) -> Steps[Fields]:
        readers: dict[bytes, Callable[[], Steps[Any]]] = {
            b"LTime": self._value,
            b"StatusLTimes": self._ltimes,
            b"LeftMembers": self._names,
            b"EventLTime": self._value,
            b"QueryLTime": self._value,
        }
        found = {}
        for _ in range((yield from self._read(self._unpacker.read_map_header))):
            key = yield from self._value()
            if key in readers:
                found[key] = yield from readers[key]()
            else:
                yield from self._read(self._unpacker.skip)
        if self._unpacker.tell() != len(self._body):
            raise ProtocolError(f"bytes after the map: {len(self._body) - self._unpacker.tell()}")
        return found

    def _ltimes(self) -> Steps[dict[str, int]]:
        found = {}
        for _ in range((yield from self._size(self._unpacker.read_map_header))):
            key = as_name((yield from self._value()), b"StatusLTimes")
            found[key] = number({b"LTime": (yield from self._value())}, b"LTime", LTIME_MAX)
        return found

    def _names(self) -> Steps[tuple[str, ...]]:
        found = []
        for _ in range((yield from self._size(self._unpacker.read_array_header))):
            found.append(as_name((yield from self._value()), b"LeftMembers"))
        return tuple(found)

    def _value(self) -> Steps[Any]:
        return (yield from self._read(self._unpacker.unpack))

    def _read(self, read: Callable[[], Any]) -> Steps[Any]:
        """Return the result of `read`; feed the unpacker with more of the body until it has enough."""
        while True:
            try:
                return read()
            except msgpack.OutOfData:
                if self._fed >= len(self._body):
                    raise
            if self._fed:
                yield PIECE_WORK
            piece = self._body[self._fed : self._fed + PIECE_BYTES]
            self._unpacker.feed(piece)
            self._fed += len(piece)

    def _size(self, read_header: Callable[[], int]) -> Steps[int]:
        """Return the size of a list of members; nil is an empty list."""
        at = self._unpacker.tell()
        if self._body[at : at + 1] == bytes((_NIL,)):
            yield from self._read(self._unpacker.skip)
            return 0
        size: int = yield from self._read(read_header)
        if size > MEMBERS_MOST:
            raise ProtocolError(f"{size} members, {MEMBERS_MOST} are allowed")
        return size
