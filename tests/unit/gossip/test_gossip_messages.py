"""Tests of messages: their bytes, and refused messages."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest

from sandq.gossip.fields import MAP_ITEMS
from sandq.gossip.messages import (
    ERROR_BYTES,
    META_BYTES,
    NAME_BYTES,
    VSN,
    Ack,
    Alive,
    Dead,
    Err,
    IndirectPing,
    Message,
    Nack,
    Ping,
    Suspect,
    User,
    decode,
    encode,
)
from sandq.model.config_schema import Address
from sandq.model.errors import InvalidSetting, ProtocolError

HERE = Address("127.0.0.1", 9900)
HOST = b"\x7f\x00\x00\x01"
U32 = 2**32

CASES: list[tuple[Message, int, dict[str, Any]]] = [
    (Ping(7, "b", None, ""), 0, {"SeqNo": 7, "Node": b"b"}),
    (
        Ping(7, "b", HERE, "a"),
        0,
        {"SeqNo": 7, "Node": b"b", "SourceAddr": HOST, "SourcePort": 9900, "SourceNode": b"a"},
    ),
    (
        IndirectPing(8, Address("::1", 1), "b", True, HERE, "a"),
        1,
        {
            **{"SeqNo": 8, "Target": bytes(15) + b"\x01", "Port": 1, "Node": b"b", "Nack": True},
            **{"SourceAddr": HOST, "SourcePort": 9900, "SourceNode": b"a"},
        },
    ),
    (Ack(U32 - 1, b"\x01x"), 2, {"SeqNo": U32 - 1, "Payload": b"\x01x"}),
    (Nack(0), 11, {"SeqNo": 0}),
    (Suspect(3, "b", "a"), 3, {"Incarnation": 3, "Node": b"b", "From": b"a"}),
    (Dead(3, "b", "b"), 5, {"Incarnation": 3, "Node": b"b", "From": b"b"}),
    (
        Alive(4, "ä", HERE, b"\xffm", VSN),
        4,
        {
            **{"Incarnation": 4, "Node": "ä".encode(), "Addr": HOST, "Port": 9900},
            **{"Meta": b"\xffm", "Vsn": b"\x01\x05\x02\x02\x05\x05"},
        },
    ),
    (Err("no"), 13, {"Error": b"no"}),
]
ALIVE = CASES[7][2]
PING = CASES[1][2]


def packed(kind: int, fields: object) -> bytes:
    body: bytes = msgpack.packb(fields, use_bin_type=False)
    return bytes((kind,)) + body


@pytest.mark.parametrize(("message", "kind", "fields"), CASES, ids=lambda value: type(value).__name__)
def test_message_bytes_round_trip(message: Message, kind: int, fields: dict[str, Any]) -> None:
    data = encode(message)
    assert data[0] == kind
    unpacked = msgpack.unpackb(data[1:], raw=True)
    assert {key.decode(): value for key, value in unpacked.items()} == fields
    assert decode(data) == message


def test_texts_are_old_raw_ones() -> None:
    meta = bytes(100)
    assert b"\xda\x00\x64" + meta in encode(Alive(1, "a", HERE, meta, VSN))


def test_a_user_message_is_as_it_is() -> None:
    for body in (b"", b"\x01\x80"):
        assert encode(User(body)) == b"\x08" + body
        assert decode(b"\x08" + body) == User(body)


@pytest.mark.parametrize("nil", [True, False])
def test_missing_optional_fields_are_zero(nil: bool) -> None:
    def without(fields: dict[str, Any], *keys: str) -> dict[str, Any]:
        kept = {key: value for key, value in fields.items() if key not in keys}
        return {**kept, **dict.fromkeys(keys)} if nil else kept

    ping = without(PING, "SourceAddr", "SourcePort", "SourceNode")
    assert decode(packed(0, ping)) == Ping(7, "b", None, "")
    indirect = without(CASES[2][2], "Nack", "SourceAddr", "SourcePort", "SourceNode")
    assert decode(packed(1, indirect)) == IndirectPing(8, Address("::1", 1), "b", False, None, "")
    assert decode(packed(2, without({"SeqNo": 1}, "Payload"))) == Ack(1, b"")
    assert decode(packed(4, without(ALIVE, "Meta", "Vsn"))) == Alive(4, "ä", HERE, b"", ())
    assert decode(packed(13, without({}, "Error"))) == Err("")


def test_half_a_source_is_none() -> None:
    assert decode(packed(0, {**PING, "SourceAddr": b""})) == Ping(7, "b", None, "a")
    assert decode(packed(0, {**PING, "SourcePort": 0})) == Ping(7, "b", None, "a")


def test_keys_of_newer_agents_are_ignored() -> None:
    newer = {**ALIVE, "Zone": b"x", "More": [1, {"a": [None, 2.5]}]}
    assert decode(packed(4, newer)) == CASES[7][0]


def test_unknown_keys_of_a_message_are_limited() -> None:
    newer = {f"key{number}": number for number in range(MAP_ITEMS - len(ALIVE))}
    assert decode(packed(4, {**ALIVE, **newer})) == CASES[7][0]
    with pytest.raises(ProtocolError, match="no msgpack"):
        decode(packed(4, {**ALIVE, **newer, "one": 1}))


def test_an_ipv4_address_has_one_form() -> None:
    mapped = bytes(10) + b"\xff\xff" + HOST
    assert decode(packed(4, {**ALIVE, "Addr": mapped})) == CASES[7][0]
    assert encode(Alive(4, "ä", Address("::ffff:127.0.0.1", 9900), b"\xffm", VSN)) == encode(CASES[7][0])


def test_a_host_that_is_a_name_is_not_sent() -> None:
    with pytest.raises(InvalidSetting, match=r"'node1\.example' is not an IP address"):
        encode(Ping(1, "b", Address("node1.example", 1), "a"))


def test_long_errors_are_cut() -> None:
    assert decode(packed(13, {"Error": b"\xc3" * 1000})) == Err("\ufffd" * ERROR_BYTES)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *[(0, {**PING, "SeqNo": value}) for value in (None, -1, U32, True, 1.0, b"1", [1])],
        *[(0, {**PING, "Node": value}) for value in (None, b"", b"x" * (NAME_BYTES + 1), b"\xff", 7, [b"b"])],
        *[(0, {**PING, "SourceAddr": value}) for value in (b"1", bytes(5), bytes(17), 5)],
        *[(0, {**PING, "SourcePort": value}) for value in (-1, 65536, True, b"1")],
        *[(0, {**PING, "SourceNode": value}) for value in (b"x" * 256, b"\xff", 1, True)],
        *[(1, {**CASES[2][2], key: None}) for key in ("Target", "Port", "SeqNo", "Node")],
        *[(1, {**CASES[2][2], "Nack": value}) for value in (0, 1, b"")],
        (2, {"SeqNo": 1, "Payload": 5}),
        (3, {"Incarnation": 1, "Node": b"b"}),
        (3, {"Incarnation": U32, "Node": b"b", "From": b"a"}),
        (5, {"Node": b"b", "From": b"a"}),
        *[(4, {**ALIVE, "Port": value}) for value in (None, 0, 65536)],
        *[(4, {**ALIVE, "Addr": value}) for value in (None, b"", bytes(3))],
        *[(4, {**ALIVE, "Meta": value}) for value in (bytes(META_BYTES + 1), [1])],
        *[(4, {**ALIVE, "Vsn": value}) for value in (b"\x01\x05\x02", bytes(7), [1, 5, 2, 2, 5, 5])],
        (11, {}),
        (13, {"Error": 5}),
        *[(0, value) for value in (None, [], 1, b"x", {1: 2}, {None: 1})],
    ],
)
def test_invalid_input_is_refused(kind: int, fields: object) -> None:
    with pytest.raises(ProtocolError, match=f"a gossip message of type {kind}: "):
        decode(packed(kind, fields))


@pytest.mark.parametrize("kind", [6, 7, 9, 10, 12, 14, 100, 244, 255])
def test_wrappers_and_unknown_types_are_no_messages(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"of type {kind}, where a message without a wrapper"):
        decode(packed(kind, {}))


def test_limits_are_reached() -> None:
    name = "x" * NAME_BYTES
    for message in (
        Alive(U32 - 1, name, Address("ff::1", 65535), bytes(META_BYTES), (255,) * 6),
        Ack(0, bytes(60_000)),
    ):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\xc1",
        encode(CASES[1][0])[:-1],
        encode(CASES[1][0]) + b"\x00",
        # Headers that announce many items but contain none.
        b"\x00\xdf\xff\xff\xff\xff",
        b"\x00\x81\xa4More\xdd\xff\xff\xff\xff",
        b"\x00\x81\xa4More" + b"\xdc\x00\x40" * 2000,
        b"\x00\x81\xa4More" + b"\xdc\x00\x40" * 500,
        b"\x00\x81\xa4More" + b"\xdc\x27\x10" * 500 + bytes(10_000),
        b"\x00\x81\xa4More\xdb\xff\xff\xff\xff",
        b"\x00\x81\xa4More\xc6\xff\xff\xff\xff",
        b"\x00\x81\xa4More\xc9\xff\xff\xff\xff\x01",
    ],
    ids=range(13),
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
