"""Tests of streams: one message in each direction, in pieces of any size."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from sandq.gossip import streams
from sandq.gossip.keyring import Keyring
from sandq.gossip.messages import VSN, Ack, Dead, Err, Nack, Ping, User, encode
from sandq.gossip.serf_messages import SerfState, decode_serf
from sandq.gossip.streams import NODES_MOST, STREAM_BYTES, USER_BYTES, NodeState, PushPull, StreamMessage, Streams
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError, TooLarge
from tests.support.gossip import agent_bytes
from tests.support.gossip.lzw_encoder import encode as lzw

KEY = bytes(32)
HERE = Address("127.0.0.1", 9900)
NODES = (
    NodeState("a", HERE, b"meta", 1, 0, VSN),
    NodeState("b", Address("::1", 1), b"", 2**32 - 1, 3, ()),
)
WHOLES: list[StreamMessage] = [
    PushPull(True, NODES, b"state"),
    PushPull(False, (), b""),
    User(b"\x01body"),
    User(b""),
    Ping(7, "b", HERE, "a"),
    Ack(7, b""),
    Err("no"),
]
NODE: dict[str, Any] = {
    **{"Name": b"a", "Addr": b"\x7f\x00\x00\x01", "Port": 9900, "Meta": b"", "Incarnation": 1, "State": 0},
    "Vsn": bytes(VSN),
}
HEAD: dict[str, Any] = {"Nodes": 1, "UserStateLen": 0, "Join": False}


def pair(key: bytes | None = None) -> Streams:
    return Streams(None if key is None else Keyring([key]), lambda: b"0123456789ab")


def packed(value: object) -> bytes:
    found: bytes = msgpack.packb(value, use_bin_type=False)
    return found


def push_pull(head: dict[str, Any], *nodes: dict[str, Any]) -> bytes:
    return b"\x06" + packed(head) + b"".join(map(packed, nodes))


def compressed(plain: bytes) -> bytes:
    return b"\x09" + packed({"Algo": 0, "Buf": lzw(plain)})


def sealed(plain: bytes) -> bytes:
    header = struct.pack(">BI", 10, len(plain) + 29)
    return header + Keyring([KEY]).seal(plain, header, bytes(12))


def read(data: bytes, size: int, key: bytes | None = None) -> StreamMessage | None:
    """Return the message that is read if the bytes arrive in pieces of this size."""
    reader = pair(key).reader()
    for start in range(0, len(data), size):
        found = reader.feed(data[start : start + size])
        if found is not None:
            assert start + size >= len(data), "bytes follow after the end of the message"
            return found
    return None


# --------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("whole", WHOLES, ids=lambda whole: type(whole).__name__)
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
def test_sealed_bytes_are_read(key: bytes | None, whole: StreamMessage, size: int) -> None:
    data = pair(key).seal(whole)
    assert read(data, size, key) == whole
    for cut in range(len(data)):
        assert read(data[:cut], size, key) is None


def test_push_pull_has_the_expected_bytes() -> None:
    data = pair().seal(PushPull(False, NODES[:1], b""))
    unpacker = msgpack.Unpacker(raw=True)
    unpacker.feed(data[1:])
    head, node = unpacker
    assert data[0] == 6
    assert head == {b"Nodes": 1, b"UserStateLen": 0, b"Join": False}
    assert {key.decode(): value for key, value in node.items()} == {**NODE, "Meta": b"meta"}


def test_encrypted_message_has_the_expected_bytes() -> None:
    data = pair(KEY).seal(User(b"x"))
    plain = b"\x08" + packed({"UserMsgLen": 1}) + b"x"
    assert data[:5] == struct.pack(">BI", 10, len(plain) + 29)
    assert Keyring([KEY]).open(data[5:], data[:5]) == plain


@pytest.mark.parametrize("whole", WHOLES, ids=lambda whole: type(whole).__name__)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_compressed_message_is_read(whole: StreamMessage, size: int) -> None:
    plain = compressed(pair().seal(whole))
    assert read(plain, size) == whole
    assert read(sealed(plain), size, KEY) == whole


# ----------------------------------------------------------------------------------------------------- of a real agent


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_streams_of_an_agent(size: int) -> None:
    assert read(agent_bytes.STREAM_ACK, size) == Ack(9, b"")
    agent = NodeState("agent1", Address("127.0.0.1", 17946), b"\xff\x81\xa4role\xa3web", 1, 0, VSN)
    for data, key in ((agent_bytes.STREAM_PUSH_PULL, None), (agent_bytes.SEALED_STREAM_PUSH_PULL, agent_bytes.KEY)):
        found = read(data, size, key)
        assert isinstance(found, PushPull) and found.join and found.nodes == (agent,)
        assert decode_serf(found.user) == SerfState(1, {"agent1": 0}, (), 1, 1)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xf4\x01a", "a label"),
        (b"\x0a", "encrypted, and this node has no gossip key"),
        (encode(Nack(1)), "type 11, which is not for streams"),
        (encode(Dead(1, "a", "b")), "type 5, which is not for streams"),
        (b"\x07\x01", "type 7"),
        (b"\xff", "type 255"),
        (b"\x06\xc1", "no msgpack"),
        (b"\x06\x01", "a map is expected"),
        (push_pull({**HEAD, "Nodes": NODES_MOST + 1}), "Nodes is 10001"),
        (push_pull({**HEAD, "Nodes": -1}), "Nodes is -1"),
        (push_pull({**HEAD, "UserStateLen": USER_BYTES + 1}), "UserStateLen is 8388609"),
        (push_pull({**HEAD, "Join": 1}), "Join is 1"),
        (push_pull(HEAD, {**NODE, "State": 4}), "State is 4"),
        (push_pull(HEAD, {**NODE, "Name": b""}), "Name is"),
        (push_pull(HEAD, {**NODE, "Port": 0}), "Port is missing"),
        (push_pull(HEAD, {**NODE, "Meta": bytes(513)}), "Meta is"),
        (push_pull(HEAD, {**NODE, "Incarnation": 2**32}), "Incarnation is"),
        (push_pull(HEAD, {**NODE, "Vsn": b"\x01"}), "Vsn has 1"),
        (b"\x08" + packed({"UserMsgLen": USER_BYTES + 1}), "UserMsgLen"),
        (b"\x08" + packed({}), "UserMsgLen is None"),
        (b"\x00" + packed({"SeqNo": 1}), "type 0: Node is None"),
        (compressed(compressed(encode(Ack(1, b"")))), "type 9"),
        (compressed(sealed(encode(Ack(1, b"")))), "type 10"),
        (compressed(encode(Ack(1, b""))[:-1]), "does not end in its"),
        (compressed(encode(Ack(1, b"")) + b"xy"), "2 bytes after the message"),
        (compressed(b""), "does not end in its 0 bytes"),
        (b"\x06\x81\xa4More\xdd\x00\x01\x00\x00", "no msgpack"),
        (b"\x06\xdf\x00\x01\x00\x00", "no msgpack"),
        (b"\x09" + packed([0]), "begins with 145"),
        (b"\x09" + packed({"Algo": 0, "Buf": 7}), "Buf begins with 7"),
        (b"\x09" + packed({"Algo": 0}), "without their end"),
        (b"\x09" + packed({"Algo": 1, "Buf": b""}), "algorithm 1, 0 alone"),
    ],
)
def test_invalid_input_is_refused(data: bytes, says: str) -> None:
    for size in (1, len(data)):
        with pytest.raises(ProtocolError, match=says):
            read(data, size)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (encode(Ack(1, b"")), "only encrypted data is accepted"),
        (compressed(encode(Ack(1, b""))), "only encrypted data is accepted"),
        (b"\xf4\x01a", "a label"),
        (struct.pack(">BI", 10, STREAM_BYTES), "announced"),
        (struct.pack(">BI", 10, 3) + b"abc", "not encrypted"),
        (struct.pack(">BI", 10, 40) + b"\x01" + bytes(39), "no key fits"),
        (sealed(sealed(encode(Ack(1, b"")))), "type 10"),
        (sealed(encode(Ack(1, b""))[:-1]), "does not end"),
        (sealed(encode(Ack(1, b"")) + b"x"), "1 bytes after"),
    ],
)
def test_invalid_key_is_refused(data: bytes, says: str) -> None:
    for size in (1, len(data)):
        with pytest.raises(ProtocolError, match=says):
            read(data, size, KEY)


def test_changed_length_of_sealed_message_is_refused() -> None:
    data = bytearray(sealed(encode(Ack(1, b""))) + b"x")
    data[4] += 1
    with pytest.raises(ProtocolError, match="no key fits"):
        read(bytes(data), 100, KEY)


def test_a_reader_ends_with_its_message() -> None:
    reader = pair().reader()
    data = pair().seal(Ack(1, b""))
    assert reader.feed(data[:-1]) is None
    assert reader.feed(data[-1:] + b"more") == Ack(1, b"")
    with pytest.raises(ProtocolError, match="after"):
        reader.feed(b"")
    wrong = pair().reader()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            wrong.feed(b"\xff")


def test_too_many_bytes_are_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_BYTES", 30_000)
    monkeypatch.setattr(streams, "USER_BYTES", 100_000)
    whole = PushPull(False, (), bytes(29_900))
    assert read(pair().seal(whole), 100) == whole
    for user in (bytes(30_001), bytes(100_001)):
        with pytest.raises(TooLarge):
            pair().seal(PushPull(False, (), user))
    with pytest.raises(TooLarge):
        pair().seal(PushPull(False, NODES[:1] * (NODES_MOST + 1), b""))
    large = b"\x06" + packed({"Nodes": 0, "UserStateLen": 30_000}) + bytes(30_000)
    with pytest.raises(ProtocolError, match="more than 30000 bytes"):
        read(large, 100)
    assert len(compressed(large)) < 1000
    with pytest.raises(ProtocolError, match="more than 30000 bytes"):
        read(compressed(large), 100)


def test_much_that_is_compressed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COMPRESSED_BYTES", 10)
    with pytest.raises(ProtocolError, match="Buf is"):
        read(compressed(pair().seal(WHOLES[0])), 100)


# ---------------------------------------------------------------------------------------------------------------- cost


def many(count: int) -> PushPull:
    nodes = tuple(NodeState(f"node{number}", HERE, bytes(200), 1, 0, VSN) for number in range(count))
    return PushPull(False, nodes, bytes(1 << 20))


class Work:
    """Counters of the work of a reader."""

    def __init__(self) -> None:
        self.bytes = 0
        """Number of bytes that were passed on or copied by a join."""
        self.attempts = 0
        """Number of attempts to unpack."""

    def joinable(self, data: bytes) -> bytes:
        """Return bytes that count the copied bytes when they are joined with other bytes."""
        work = self

        class Joinable(bytes):
            def __add__(self, more: Any) -> bytes:
                work.bytes += len(self) + len(more)
                return Joinable(bytes(self) + bytes(more))

            def __radd__(self, before: Any) -> Any:
                if isinstance(before, bytearray):
                    return NotImplemented  # a bytearray grows in place
                work.bytes += len(before) + len(self)
                return Joinable(bytes(before) + bytes(self))

        return Joinable(data)

    def unpacker(self, **options: Any) -> msgpack.Unpacker:
        """Return an unpacker that counts its attempts and the bytes that it reads."""
        work = self

        class Unpacker(msgpack.Unpacker):  # type: ignore[misc]
            def read_bytes(self, size: int) -> bytes:
                found = super().read_bytes(size)
                work.bytes += len(found)
                return work.joinable(found)

            def unpack(self) -> Any:
                work.attempts += 1
                return super().unpack()

        return Unpacker(**options)


def test_unknown_fields_of_compressed_message_are_ignored() -> None:
    newer = {"Algo": 0, "More": [1, {"a": 2}], "Buf": lzw(encode(Ack(1, b"")))}
    for use_bin_type in (False, True):
        data = b"\x09" + msgpack.packb(newer, use_bin_type=use_bin_type)
        assert read(data, 1) == read(data, len(data)) == Ack(1, b"")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_large_state_is_read_and_written_in_steps(key: bytes | None, is_compressed: bool) -> None:
    count = 400
    streams_ = pair(key)
    whole = PushPull(False, many(count).nodes, bytes(100_000))
    sealing = [*streams_.sealing(whole)]
    plain = pair().seal(whole)
    plain = compressed(plain) if is_compressed else plain
    works = [*streams_.reader().feeding(sealed(plain) if key else plain)]
    bytes_work = len(plain) // 16 if is_compressed else 0
    assert len(sealing) == (count - 1) // streams.NODES_AT_ONCE
    assert sum(works) >= count * 4 + bytes_work - 256 and max(works) <= 128


def test_a_map_of_nested_arrays_is_given_up_early() -> None:
    """Each byte of the message would use 28 bytes of memory."""
    reader = pair().reader()
    nested = b"\xdc\x00\x40" + (b"\xdc\x00\x40" + b"\x91\x90" * 64) * 64
    data = b"\x06\xde\x00\x40" + (b"\xa1a" + nested) * 64
    assert len(data) > 4 * streams.MAP_BYTES
    with pytest.raises(ProtocolError, match="a map of more than"):
        for start in range(0, len(data), 1000):
            assert reader.feed(data[start : start + 1000]) is None
    assert reader.held_bytes <= streams.MAP_BYTES + 2000


@pytest.mark.parametrize("key", [None, KEY])
def test_a_large_state_in_small_pieces_costs_as_much_as_in_one(
    key: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join after each of 4000 pieces would copy 4 GB."""
    count, size = 4000, 500
    whole = many(count)
    data = pair(key).seal(whole)
    assert len(data) > 2_000_000
    work = Work()
    monkeypatch.setattr(streams, "msgpack", SimpleNamespace(Unpacker=work.unpacker, OutOfData=msgpack.OutOfData))
    assert read(work.joinable(data), size, key) == whole
    assert work.bytes < 3 * len(data)
    assert work.attempts <= count + len(data) // size + 3


@pytest.mark.parametrize(
    "data",
    [
        b"\x06" + packed({"Nodes": NODES_MOST, "UserStateLen": USER_BYTES}),
        push_pull({"Nodes": 1, "UserStateLen": USER_BYTES}, NODE),
        b"\x08" + packed({"UserMsgLen": USER_BYTES}),
        b"\x09\x82\xa4Algo\x00\xa3Buf\xdb\x00\x7f\x00\x00",
        b"\x06\x81\xa4More" + b"\xdc\x00\x40" * 500,
        b"\x06\x81\xa4More" + b"\xdc\x27\x10" * 500,
        b"\x06\x81\xa4More" + b"\xde\x00\x40\xa1a" * 500,
    ],
    ids=range(7),
)
def test_announced_lengths_allocate_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with suppress(ProtocolError):
            assert read(data, 100) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        assert read(struct.pack(">BI", 10, STREAM_BYTES // 2), 1, KEY) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
