"""Streams (TCP) between two members: one message in each direction.

    encrypted   10 | length u32 big-endian | length bytes, see `keyring`; the first five are the additional data
    9           compress: {Algo, Buf}
    6           push-pull: {Nodes, UserStateLen, Join} | Nodes x {Name, Addr, Port, Meta, Incarnation, State, Vsn} |
                UserStateLen bytes, which are Serf's: see `serf_messages.SerfState`
    8           user: {UserMsgLen} | UserMsgLen bytes
    0, 2, 13    ping, ack, err, as in a packet

Unencrypted data does not announce its length: it is read as it arrives. Memory use depends on the received data, not on
announced lengths. sandq compresses nothing. Expensive work is done in steps (`steps`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from sandq.gossip.fields import (
    ARRAY_ITEMS,
    MAP_ITEMS,
    Fields,
    address,
    as_fields,
    flag,
    host_bytes,
    name,
    number,
    pack,
    raw,
    unreadable,
    versions,
)
from sandq.gossip.keyring import OVERHEAD, Keyring
from sandq.gossip.messages import (
    ACK,
    COMPRESS,
    COMPRESSED_BYTES,
    ENCRYPT,
    ERR,
    INCARNATION_MAX,
    LABEL,
    META_BYTES,
    PING,
    PUSH_PULL,
    USER,
    Message,
    User,
    encode,
    from_fields,
    inflating,
)
from sandq.gossip.steps import Steps, at_once
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError, TooLarge

STREAM_BYTES: Final = 16 << 20
"""Maximum size of one direction of a stream, before and after decompression."""
USER_BYTES: Final = 8 << 20
"""Maximum size of the user state in a push-pull, and of a user message."""
NODES_MOST: Final = 10_000
READ_BYTES: Final = 16 << 10
"""Initial buffer size of a stream's reader."""
PIECE_BYTES: Final = 64 << 10
"""Decrypted or decompressed data is read in pieces of this size."""
PIECE_WORK: Final = 16
"""Units of work for a piece of `PIECE_BYTES`."""
MAP_BYTES: Final = 128 << 10
"""Maximum size of an incomplete map: nested arrays take 28 times as much memory as they have bytes."""
NODE_BYTES: Final = 1024
"""Approximate memory of a node's state, with the longest name and tags."""
NODES_AT_ONCE: Final = 32
"""Number of node states that are read or written in one step."""
NODES_WORK: Final = 128
"""Units of work of such a step."""
ALIVE_STATE, SUSPECT_STATE, DEAD_STATE, LEFT_STATE = range(4)

_HEADER = struct.Struct(">BI")
# Type bytes of msgpack: small maps, small raw values, and the other kinds of bytes with the sizes of their lengths.
_FIXMAP, _FIXMAP_ITEMS = 0x80, 0x0F
_FIXRAW, _FIXRAW_BYTES = 0xA0, 0x1F
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


@dataclass(frozen=True, slots=True)
class NodeState:
    """A member's view of a node. `state`: 0 alive, 1 suspect, 2 dead, 3 left; `vsn`: see `messages.VSN`."""

    name: str
    address: Address
    meta: bytes
    incarnation: int
    state: int
    vsn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushPull:
    """The complete state of a member. The receiver answers with its own state. `join`: the sender is new."""

    join: bool
    nodes: Sequence[NodeState]
    user: bytes


StreamMessage = PushPull | Message


class Streams:
    """Encodes and decodes streams. `nonce` returns 12 bytes, never the same twice; it is only called with a keyring."""

    def __init__(
        self, keyring: Keyring | None, nonce: Callable[[], bytes], *, seals: bool = True, takes_plain: bool = False
    ) -> None:
        """`seals`, `takes_plain`: as for `Packets`."""
        self._keyring = keyring
        self._seals = seals
        self._takes_plain = takes_plain
        self._nonce = nonce

    def seal(self, message: StreamMessage) -> bytes:
        """Return all bytes of one direction. Raises TooLarge if the receiver would refuse that number of bytes."""
        return at_once(self.sealing(message))

    def sealing(self, message: StreamMessage) -> Steps[bytes]:
        """Like `seal`, in steps."""
        plain = yield from _encoding(message)
        size = len(plain) + _HEADER.size + OVERHEAD
        if size > STREAM_BYTES:
            raise TooLarge(
                f"{size} bytes of gossip for a stream: {STREAM_BYTES} is the limit",
                limit="gossip_stream_bytes",
                maximum=STREAM_BYTES,
                size=size,
            )
        if self._keyring is None or not self._seals:
            return plain
        header = _HEADER.pack(ENCRYPT, OVERHEAD + len(plain))
        return header + (yield from self._keyring.sealing(plain, header, self._nonce()))

    def reader(self) -> StreamReader:
        """Return a reader for the other direction."""
        return StreamReader(self._keyring, takes_plain=self._takes_plain)


class StreamReader:
    """Reads one direction of a stream, which is one message."""

    def __init__(self, keyring: Keyring | None, *, takes_plain: bool = False) -> None:
        self._source = _Source()
        self._reading = _plain(self._source) if keyring is None else _sealed(self._source, keyring, takes_plain)
        self._ended = False

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the received data and of the objects made from it, in bytes."""
        return self._source.held_bytes

    def feed(self, data: bytes) -> StreamMessage | None:
        """Process received bytes; return the message once it is complete, else None.

        Raises ProtocolError if it is invalid, or if bytes follow a complete or invalid message.
        """
        return at_once(self.feeding(data))

    def feeding(self, data: bytes) -> Steps[StreamMessage | None]:
        """Like `feed`, in steps."""
        if self._ended:
            raise ProtocolError("bytes after the message of a gossip stream")
        try:
            self._source.feed(data)
            while (work := next(self._reading)) != MORE:
                yield work
        except StopIteration as end:
            self._ended = True
            found: StreamMessage = end.value
            return found
        except ProtocolError:
            self._ended = True
            raise
        return None


# ---------------------------------------------------------------------------------------------------------- writing


def _encoding(message: StreamMessage) -> Steps[bytes]:
    if isinstance(message, User):
        return bytes((USER,)) + pack({"UserMsgLen": len(message.body)}) + message.body
    if not isinstance(message, PushPull):
        return encode(message)
    if len(message.nodes) > NODES_MOST or len(message.user) > USER_BYTES:
        raise TooLarge(f"a state of {len(message.nodes)} nodes and {len(message.user)} bytes of Serf's is too large")
    head = {"Nodes": len(message.nodes), "UserStateLen": len(message.user), "Join": message.join}
    parts = [bytes((PUSH_PULL,)), pack(head)]
    for start in range(0, len(message.nodes), NODES_AT_ONCE):
        if start:
            yield NODES_WORK
        parts += map(_encode_node, message.nodes[start : start + NODES_AT_ONCE])
    return b"".join((*parts, message.user))


def _encode_node(node: NodeState) -> bytes:
    fields = {
        "Name": node.name,
        "Addr": host_bytes(node.address.host),
        "Port": node.address.port,
        "Meta": node.meta,
        "Incarnation": node.incarnation,
        "State": node.state,
        "Vsn": bytes(node.vsn),
    }
    return pack(fields)


# ---------------------------------------------------------------------------------------------------------- reading

MORE: Final = 0
Reads = Steps[Any]
"""Yields `MORE` when more bytes are needed, and the units of work after each step; returns the result."""


class _Source:
    """A buffer of received bytes."""

    def __init__(self) -> None:
        self._arrived = 0
        self.nodes = 0
        """Number of node states that were read."""
        # msgpack allocates texts only once they have arrived, but arrays and maps in advance. So arrays and
        # maps have small limits.
        self._unpacker = msgpack.Unpacker(
            raw=True,
            use_list=False,
            read_size=READ_BYTES,
            max_buffer_size=STREAM_BYTES,
            max_str_len=STREAM_BYTES,
            max_bin_len=STREAM_BYTES,
            max_array_len=ARRAY_ITEMS,
            max_map_len=MAP_ITEMS,
            max_ext_len=0,
        )
        self._take = self._unpacker.read_bytes

    def feed(self, data: bytes | bytearray) -> None:
        self._arrived += len(data)
        if self._arrived > STREAM_BYTES:
            raise ProtocolError(f"more than {STREAM_BYTES} bytes of gossip on a stream")
        self._unpacker.feed(data)

    @property
    def held_bytes(self) -> int:
        """Approximate memory in use, in bytes."""
        return self._arrived + self.nodes * NODE_BYTES

    @property
    def left(self) -> int:
        """Number of received bytes that were not read."""
        return self._arrived - int(self._unpacker.tell())

    def take(self, size: int) -> Steps[bytes]:
        """Read the next `size` bytes."""
        return bytes((yield from self.gathered(size)))

    def gathered(self, size: int) -> Steps[bytes | bytearray]:
        """Like `take`, without a final copy, since there may be megabytes."""
        first: bytes = self._take(size)
        if len(first) == size:
            return first
        found = bytearray(first)
        while len(found) < size:
            yield MORE
            found += self._take(size - len(found))
        return found

    def fields(self) -> Steps[Fields]:
        """Read the next msgpack map."""
        return as_fields((yield from self._value()))

    def compressed_fields(self) -> Steps[Fields]:
        """Read the msgpack map of compressed data: only its `Buf` may be long, and unknown keys are dropped."""
        head = (yield from self.take(1))[0]
        if head & ~_FIXMAP_ITEMS != _FIXMAP:
            raise ProtocolError(f"the map of compressed data begins with {head}")
        found: dict[bytes, Any] = {}
        for _ in range(head & _FIXMAP_ITEMS):
            key = yield from self._value()
            value = (yield from self._compressed()) if key == b"Buf" else (yield from self._value())
            if key == b"Buf" or key == b"Algo":
                found[key] = value
        return found

    def _compressed(self) -> Steps[bytes]:
        head = (yield from self.take(1))[0]
        if head & ~_FIXRAW_BYTES == _FIXRAW:
            size = head & _FIXRAW_BYTES
        elif head in _LENGTH_BYTES:
            size = int.from_bytes((yield from self.take(_LENGTH_BYTES[head])), "big")
        else:
            raise ProtocolError(f"Buf begins with {head}: bytes are expected")
        if size > COMPRESSED_BYTES:
            raise ProtocolError(f"Buf is of {size} bytes, at most {COMPRESSED_BYTES} are expected")
        return (yield from self.take(size))

    def _value(self) -> Steps[Any]:
        begins_at = int(self._unpacker.tell())
        while True:
            try:
                return self._unpacker.unpack()
            except msgpack.OutOfData:
                # All data received since `begins_at` belongs to this value.
                if self._arrived - begins_at > MAP_BYTES:
                    raise ProtocolError(f"a map of more than {MAP_BYTES} bytes on a gossip stream") from None
            except Exception as error:  # msgpack raises a dozen different exceptions
                raise unreadable(error) from None
            yield MORE


def _sealed(source: _Source, keyring: Keyring, takes_plain: bool) -> Reads:
    header = yield from source.take(1)
    if header[0] != ENCRYPT and takes_plain:
        return (yield from _plain_of(source, header[0]))
    if header[0] != ENCRYPT:
        raise _unexpected(header[0], "and this node has a gossip key: only encrypted data is accepted")
    header += yield from source.take(_HEADER.size - 1)
    length = _HEADER.unpack(header)[1]
    if length > STREAM_BYTES - _HEADER.size:
        raise ProtocolError(f"{length} bytes of gossip announced on a stream: {STREAM_BYTES} is the limit")
    sealed = yield from source.gathered(length)
    return (yield from _whole((yield from keyring.opening(sealed, header)), _plain))


def _plain(source: _Source) -> Reads:
    kind = (yield from source.take(1))[0]
    return (yield from _plain_of(source, kind))


def _plain_of(source: _Source, kind: int) -> Reads:
    if kind != COMPRESS:
        return (yield from _message(source, kind))
    fields = yield from source.compressed_fields()
    return (yield from _whole((yield from inflating(fields, STREAM_BYTES)), _inflated))


def _inflated(source: _Source) -> Reads:
    kind = (yield from source.take(1))[0]
    return (yield from _message(source, kind))


def _message(source: _Source, kind: int) -> Reads:
    if kind == PUSH_PULL:
        return (yield from _push_pull(source))
    if kind == USER:
        length = number((yield from source.fields()), b"UserMsgLen", USER_BYTES)
        return User((yield from source.take(length)))
    if kind in (PING, ACK, ERR):
        return from_fields(kind, (yield from source.fields()))
    raise _unexpected(kind, "which is not for streams")


def _push_pull(source: _Source) -> Reads:
    head = yield from source.fields()
    count = number(head, b"Nodes", NODES_MOST, 0)
    length = number(head, b"UserStateLen", USER_BYTES, 0)
    join = flag(head, b"Join")
    nodes = []
    for _ in range(count):
        nodes.append(_node((yield from source.fields())))
        source.nodes += 1
        if not source.nodes % NODES_AT_ONCE:
            yield NODES_WORK
    return PushPull(join, tuple(nodes), (yield from source.take(length)))


def _node(fields: Fields) -> NodeState:
    return NodeState(
        name(fields, b"Name"),
        address(fields, b"Addr", b"Port"),
        raw(fields, b"Meta", META_BYTES),
        number(fields, b"Incarnation", INCARNATION_MAX, 0),
        number(fields, b"State", LEFT_STATE, ALIVE_STATE),
        versions(fields),
    )


def _whole(data: bytes | bytearray, read: Callable[[_Source], Reads]) -> Reads:
    """Decode all of these bytes as one message."""
    source = _Source()
    reading = read(source)
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        source.feed(data[start : start + PIECE_BYTES])
        try:
            while (work := next(reading)) != MORE:
                yield work
        except StopIteration as end:
            behind = source.left + max(0, len(data) - start - PIECE_BYTES)
            if behind:
                raise ProtocolError(f"{behind} bytes after the message of a gossip stream") from None
            return end.value
        yield PIECE_WORK
    raise ProtocolError(f"a gossip stream's message does not end in its {len(data)} bytes")


def _unexpected(kind: int, why: str) -> ProtocolError:
    if kind == ENCRYPT:
        why = "which is encrypted, and this node has no gossip key"
    if kind == LABEL:
        why = "a label: it is from a cluster with labels, which sandq does not support"
    return ProtocolError(f"a gossip stream begins with type {kind}, {why}")
