"""What two members say to each other over TCP: one message in each direction.

    encrypted   10 | length u32 big-endian | length bytes, see `keyring`; the first five are the additional data
    9           compress: {Algo, Buf}
    6           push-pull: {Nodes, UserStateLen, Join} | Nodes x {Name, Addr, Port, Meta, Incarnation, State, Vsn} |
                UserStateLen bytes, which are Serf's: see `serf_messages.SerfState`
    8           user: {UserMsgLen} | UserMsgLen bytes
    0, 2, 13    ping, ack, err, as in a packet

What is not encrypted does not say how long it is: it is read as it comes. Memory follows what has arrived, not what
a length announces. sandq compresses nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
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
    inflate,
)
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError, TooLarge

STREAM_BYTES: Final = 16 << 20
"""Of one direction of a stream, and of what comes out when it is compressed."""
USER_BYTES: Final = 8 << 20
"""Of the user state in a push-pull, and of a user message."""
NODES_MOST: Final = 10_000
READ_BYTES: Final = 16 << 10
"""Room that the reader of a stream begins with."""
ALIVE_STATE, SUSPECT_STATE, DEAD_STATE, LEFT_STATE = range(4)

_HEADER = struct.Struct(">BI")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a member believes of a node. `state`: 0 alive, 1 suspect, 2 dead, 3 left; `vsn`: see `messages.VSN`."""

    name: str
    address: Address
    meta: bytes
    incarnation: int
    state: int
    vsn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushPull:
    """All that a member believes, sent to be answered with the same. `join`: the sender is new here."""

    join: bool
    nodes: Sequence[NodeState]
    user: bytes


Whole = PushPull | Message


class Streams:
    """`nonce` gives 12 bytes, never the same twice; it is not called without a keyring."""

    def __init__(self, keyring: Keyring | None, nonce: Callable[[], bytes]) -> None:
        self._keyring = keyring
        self._nonce = nonce

    def seal(self, message: Whole) -> bytes:
        """All bytes of one direction. TooLarge when the other side would not take so many."""
        plain = _encode(message)
        size = len(plain) + _HEADER.size + OVERHEAD
        if size > STREAM_BYTES:
            raise TooLarge(
                f"{size} bytes of gossip for a stream: {STREAM_BYTES} is the limit",
                limit="gossip_stream_bytes",
                maximum=STREAM_BYTES,
                size=size,
            )
        if self._keyring is None:
            return plain
        header = _HEADER.pack(ENCRYPT, OVERHEAD + len(plain))
        return header + self._keyring.seal(plain, header, self._nonce())

    def reader(self) -> StreamReader:
        """Reads the other direction."""
        return StreamReader(self._keyring)


class StreamReader:
    """Of one direction of a stream, which is one message."""

    def __init__(self, keyring: Keyring | None) -> None:
        self._source = _Source()
        self._reading = _plain(self._source) if keyring is None else _sealed(self._source, keyring)
        self._ended = False

    def feed(self, data: bytes) -> Whole | None:
        """The message when these bytes complete it; None: there must be more. ProtocolError when it is none, and
        when the message is complete or was none already."""
        if self._ended:
            raise ProtocolError("bytes behind the one message of a gossip stream")
        try:
            self._source.feed(data)
            next(self._reading)
        except StopIteration as end:
            self._ended = True
            found: Whole = end.value
            return found
        except ProtocolError:
            self._ended = True
            raise
        return None


# ---------------------------------------------------------------------------------------------------------- writing


def _encode(message: Whole) -> bytes:
    if isinstance(message, User):
        return bytes((USER,)) + pack({"UserMsgLen": len(message.body)}) + message.body
    if not isinstance(message, PushPull):
        return encode(message)
    if len(message.nodes) > NODES_MOST or len(message.user) > USER_BYTES:
        raise TooLarge(f"a state of {len(message.nodes)} nodes and {len(message.user)} bytes of Serf's is too large")
    head = {"Nodes": len(message.nodes), "UserStateLen": len(message.user), "Join": message.join}
    return b"".join((bytes((PUSH_PULL,)), pack(head), *map(_encode_node, message.nodes), message.user))


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

LinearizableReads = Generator[None, None, Any]
"""Yields whenever more bytes are needed; returns what it read."""


class _Source:
    """Bytes as they come."""

    def __init__(self) -> None:
        self._arrived = 0
        self._taken = 0
        # A text has to be there before room is made for it; arrays and maps have not.
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

    def feed(self, data: bytes) -> None:
        self._arrived += len(data)
        if self._arrived > STREAM_BYTES:
            raise ProtocolError(f"more than {STREAM_BYTES} bytes of gossip on a stream")
        self._unpacker.feed(data)

    @property
    def left(self) -> int:
        """Bytes that arrived and were not read."""
        return self._arrived - int(self._unpacker.tell())

    def bytes(self, size: int) -> Generator[None, None, bytes]:
        """The next `size` bytes as they are."""
        first: bytes = self._take(size)
        if len(first) == size:
            return first
        found = bytearray(first)
        while len(found) < size:
            yield
            found += self._take(size - len(found))
        return bytes(found)

    def fields(self) -> Generator[None, None, Fields]:
        """The next msgpack map."""
        while True:
            try:
                return as_fields(self._unpacker.unpack())
            except msgpack.OutOfData:
                pass
            except ProtocolError:
                raise
            except Exception as error:  # msgpack raises a dozen kinds
                raise unreadable(error) from None
            yield


def _sealed(source: _Source, keyring: Keyring) -> LinearizableReads:
    decrypt = keyring.open
    header = yield from source.bytes(1)
    if header[0] != ENCRYPT:
        raise _unexpected(header[0], "and this node has a gossip key: only what is encrypted is read")
    header += yield from source.bytes(_HEADER.size - 1)
    length = _HEADER.unpack(header)[1]
    if length > STREAM_BYTES - _HEADER.size:
        raise ProtocolError(f"{length} bytes of gossip announced on a stream: {STREAM_BYTES} is the limit")
    sealed = yield from source.bytes(length)
    return _whole(decrypt(sealed, header), _plain)


def _plain(source: _Source) -> LinearizableReads:
    kind = (yield from source.bytes(1))[0]
    if kind != COMPRESS:
        return (yield from _message(source, kind))
    fields = yield from source.fields()
    return _whole(inflate(fields, STREAM_BYTES), _inflated)


def _inflated(source: _Source) -> LinearizableReads:
    kind = (yield from source.bytes(1))[0]
    return (yield from _message(source, kind))


def _message(source: _Source, kind: int) -> LinearizableReads:
    if kind == PUSH_PULL:
        return (yield from _push_pull(source))
    if kind == USER:
        length = number((yield from source.fields()), b"UserMsgLen", USER_BYTES)
        return User((yield from source.bytes(length)))
    if kind in (PING, ACK, ERR):
        return from_fields(kind, (yield from source.fields()))
    raise _unexpected(kind, "which is not for streams")


def _push_pull(source: _Source) -> LinearizableReads:
    head = yield from source.fields()
    count = number(head, b"Nodes", NODES_MOST, 0)
    length = number(head, b"UserStateLen", USER_BYTES, 0)
    join = flag(head, b"Join")
    nodes = []
    for _ in range(count):
        nodes.append(_node((yield from source.fields())))
    return PushPull(join, tuple(nodes), (yield from source.bytes(length)))


def _node(fields: Fields) -> NodeState:
    return NodeState(
        name(fields, b"Name"),
        address(fields, b"Addr", b"Port"),
        raw(fields, b"Meta", META_BYTES),
        number(fields, b"Incarnation", INCARNATION_MAX, 0),
        number(fields, b"State", LEFT_STATE, ALIVE_STATE),
        versions(fields),
    )


def _whole(data: bytes, read: Callable[[_Source], LinearizableReads]) -> Whole:
    """The message that all of these bytes are."""
    source = _Source()
    source.feed(data)
    try:
        next(read(source))
    except StopIteration as end:
        if source.left:
            raise ProtocolError(f"{source.left} bytes behind the message of a gossip stream") from None
        found: Whole = end.value
        return found
    raise ProtocolError(f"a gossip stream's message does not end in its {len(data)} bytes")


def _unexpected(kind: int, why: str) -> ProtocolError:
    if kind == ENCRYPT:
        why = "which is encrypted, and this node has no gossip key"
    if kind == LABEL:
        why = "a label: it is of a cluster with labels, and sandq has none"
    return ProtocolError(f"a gossip stream begins with type {kind}, {why}")
