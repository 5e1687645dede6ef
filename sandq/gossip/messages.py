"""The messages of memberlist: one type byte, then a msgpack map of Go's field names.

    0   ping           SeqNo, Node, SourceAddr, SourcePort, SourceNode
    1   indirect ping  SeqNo, Target, Port, Node, Nack, SourceAddr, SourcePort, SourceNode
    2   ack            SeqNo, Payload
    3   suspect        Incarnation, Node, From
    4   alive          Incarnation, Node, Addr, Port, Meta, Vsn
    5   dead           Incarnation, Node, From
    8   user           no map: the bytes as they are (different on a stream)
    11  nack           SeqNo
    13  err            Error

The other codes are for wrappers of messages, and for the exchange of states: see `packets` and `streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandq.gossip import lzw
from sandq.gossip.fields import (
    META_BYTES as META_BYTES,
)
from sandq.gossip.fields import (
    NAME_BYTES as NAME_BYTES,
)
from sandq.gossip.fields import (
    U8_MAX,
    U16_MAX,
    U32_MAX,
    Fields,
    address,
    flag,
    host_bytes,
    name,
    number,
    optional_address,
    optional_name,
    pack,
    raw,
    unpack,
    versions,
)
from sandq.gossip.steps import Steps
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError

PING: Final = 0
INDIRECT_PING: Final = 1
ACK: Final = 2
SUSPECT: Final = 3
ALIVE: Final = 4
DEAD: Final = 5
PUSH_PULL: Final = 6
COMPOUND: Final = 7
USER: Final = 8
COMPRESS: Final = 9
ENCRYPT: Final = 10
NACK: Final = 11
CRC: Final = 12
ERR: Final = 13
LABEL: Final = 244

VSN: Final = (1, 5, 2, 2, 5, 5)
"""The versions of this node: memberlist 1 to 5, currently 2; Serf 2 to 5, currently 5."""
SEQ_MAX: Final = U32_MAX
INCARNATION_MAX: Final = U32_MAX
PAYLOAD_BYTES: Final = U16_MAX
"""Maximum length of an ack's payload."""
ERROR_BYTES: Final = 512
"""Maximum length of an error's text; a longer one is truncated."""
LZW: Final = 0
"""The only algorithm of compressed messages."""
COMPRESSED_BYTES: Final = 2 << 20
"""Maximum size of compressed data. Decoding it takes up to 2 seconds, in steps; 2,000 node states have 0.1 MB."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks `node` for an ack, to be sent to `source`; None: to the sender of the ping."""

    seq: int
    node: str
    source: Address | None
    source_node: str


@dataclass(frozen=True, slots=True)
class IndirectPing:
    """Asks the receiver to ping `node` at `target`. `nack`: request a nack if the node does not answer in time."""

    seq: int
    target: Address
    node: str
    nack: bool
    source: Address | None
    source_node: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a ping; Serf's payload is its network coordinate."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Nack:
    """The answer to an indirect ping whose target has not answered yet."""

    seq: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """`sender` got no answer from `node`."""

    incarnation: int
    node: str
    sender: str


@dataclass(frozen=True, slots=True)
class Dead:
    """`sender` declares `node` dead; if both are the same, the node has left."""

    incarnation: int
    node: str
    sender: str


@dataclass(frozen=True, slots=True)
class Alive:
    """`node` is alive. `vsn`: see `VSN`; empty if the node does not send its versions."""

    incarnation: int
    node: str
    address: Address
    meta: bytes
    vsn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class User:
    """A message of Serf: see `serf_messages`."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Err:
    """An error that the other side reports."""

    error: str


Message = Ping | IndirectPing | Ack | Nack | Suspect | Dead | Alive | User | Err


# ---------------------------------------------------------------------------------------------------------- writing


def encode(message: Message) -> bytes:
    """Return the type byte and the body. Raises InvalidSetting if an address is not an IP address."""
    return _WRITERS[type(message)](message)


def _source(source: Address | None, source_node: str) -> dict[str, object]:
    found: dict[str, object] = {}
    if source is not None:
        found = {"SourceAddr": host_bytes(source.host), "SourcePort": source.port}
    if source_node:
        found["SourceNode"] = source_node
    return found


def _write_ping(message: Ping) -> bytes:
    fields = {"SeqNo": message.seq, "Node": message.node, **_source(message.source, message.source_node)}
    return b"\x00" + pack(fields)


def _write_indirect_ping(message: IndirectPing) -> bytes:
    fields = {
        "SeqNo": message.seq,
        "Target": host_bytes(message.target.host),
        "Port": message.target.port,
        "Node": message.node,
        "Nack": message.nack,
        **_source(message.source, message.source_node),
    }
    return b"\x01" + pack(fields)


def _write_alive(message: Alive) -> bytes:
    fields = {
        "Incarnation": message.incarnation,
        "Node": message.node,
        "Addr": host_bytes(message.address.host),
        "Port": message.address.port,
        "Meta": message.meta,
        "Vsn": bytes(message.vsn),
    }
    return b"\x04" + pack(fields)


def _write_belief(kind: bytes, message: Suspect | Dead) -> bytes:
    return kind + pack({"Incarnation": message.incarnation, "Node": message.node, "From": message.sender})


_WRITERS: dict[type, Callable[..., bytes]] = {
    Ping: _write_ping,
    IndirectPing: _write_indirect_ping,
    Ack: lambda message: b"\x02" + pack({"SeqNo": message.seq, "Payload": message.payload}),
    Nack: lambda message: b"\x0b" + pack({"SeqNo": message.seq}),
    Suspect: lambda message: _write_belief(b"\x03", message),
    Dead: lambda message: _write_belief(b"\x05", message),
    Alive: _write_alive,
    User: lambda message: b"\x08" + message.body,
    Err: lambda message: b"\x0d" + pack({"Error": message.error}),
}


# ---------------------------------------------------------------------------------------------------------- reading


def decode(data: bytes) -> Message:
    """Decode one part of a packet. Raises ProtocolError."""
    if not data:
        raise ProtocolError("a gossip message without a byte")
    kind = data[0]
    if kind == USER:
        return User(bytes(data[1:]))
    if kind not in _READERS:
        raise ProtocolError(f"a gossip message of type {kind}, where a message without a wrapper is expected")
    try:
        return _READERS[kind](unpack(data[1:]))
    except ProtocolError as error:
        raise _wrong(kind, error) from None


def from_fields(kind: int, fields: Fields) -> Message:
    """Return the message of a type other than `USER` from its decoded map."""
    try:
        return _READERS[kind](fields)
    except ProtocolError as error:
        raise _wrong(kind, error) from None


def inflating(fields: Fields, limit: int) -> Steps[bytes]:
    """Decompress the data, at most `limit` bytes, in steps. Raises ProtocolError."""
    algorithm = number(fields, b"Algo", U8_MAX, LZW)
    if algorithm != LZW:
        raise ProtocolError(f"compressed with algorithm {algorithm}, {LZW} alone is known")
    return lzw.decoding(raw(fields, b"Buf", COMPRESSED_BYTES), limit)


def _wrong(kind: int, error: ProtocolError) -> ProtocolError:
    return ProtocolError(f"a gossip message of type {kind}: {error}")


def _read_ping(fields: Fields) -> Ping:
    return Ping(
        number(fields, b"SeqNo", SEQ_MAX),
        name(fields, b"Node"),
        optional_address(fields, b"SourceAddr", b"SourcePort"),
        optional_name(fields, b"SourceNode"),
    )


def _read_indirect_ping(fields: Fields) -> IndirectPing:
    return IndirectPing(
        number(fields, b"SeqNo", SEQ_MAX),
        address(fields, b"Target", b"Port"),
        name(fields, b"Node"),
        flag(fields, b"Nack"),
        optional_address(fields, b"SourceAddr", b"SourcePort"),
        optional_name(fields, b"SourceNode"),
    )


def _read_ack(fields: Fields) -> Ack:
    return Ack(number(fields, b"SeqNo", SEQ_MAX), raw(fields, b"Payload", PAYLOAD_BYTES))


def _read_nack(fields: Fields) -> Nack:
    return Nack(number(fields, b"SeqNo", SEQ_MAX))


def _read_suspect(fields: Fields) -> Suspect:
    return Suspect(number(fields, b"Incarnation", INCARNATION_MAX), name(fields, b"Node"), name(fields, b"From"))


def _read_dead(fields: Fields) -> Dead:
    return Dead(number(fields, b"Incarnation", INCARNATION_MAX), name(fields, b"Node"), name(fields, b"From"))


def _read_alive(fields: Fields) -> Alive:
    return Alive(
        number(fields, b"Incarnation", INCARNATION_MAX),
        name(fields, b"Node"),
        address(fields, b"Addr", b"Port"),
        raw(fields, b"Meta", META_BYTES),
        versions(fields),
    )


def _read_err(fields: Fields) -> Err:
    return Err(raw(fields, b"Error", PAYLOAD_BYTES)[:ERROR_BYTES].decode("utf-8", "replace"))


_READERS: dict[int, Callable[[Fields], Message]] = {
    PING: _read_ping,
    INDIRECT_PING: _read_indirect_ping,
    ACK: _read_ack,
    SUSPECT: _read_suspect,
    ALIVE: _read_alive,
    DEAD: _read_dead,
    NACK: _read_nack,
    ERR: _read_err,
}
