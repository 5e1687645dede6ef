"""Tests of datagrams: their layers in the right order and in wrong orders."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from zlib import crc32

import msgpack
import pytest

from sandq.gossip.keyring import Keyring
from sandq.gossip.messages import VSN, Ack, Alive, Dead, IndirectPing, Message, Nack, Ping, Suspect, User, encode
from sandq.gossip.packets import COMPOUND_BYTES, PACKET_BYTES, PART_BYTES, Opened, Packets
from sandq.gossip.serf_messages import decode_tags
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError, TooLarge
from tests.support.gossip import agent_bytes
from tests.support.gossip.lzw_encoder import encode as lzw

HERE = Address("127.0.0.1", 9900)
AGENT, SANDQ = Address("127.0.0.1", 17946), Address("127.0.0.1", 19900)
MESSAGES: list[Message] = [
    Ping(1, "b", HERE, "a"),
    Suspect(1, "c", "a"),
    Alive(1, "a", HERE, b"meta", VSN),
    User(b"\x00body"),
]
PARTS = [encode(message) for message in MESSAGES]


def counted() -> Callable[[], bytes]:
    numbers = itertools.count()
    return lambda: next(numbers).to_bytes(12, "big")


def packets(key: bytes | None = None) -> Packets:
    return Packets(None if key is None else Keyring([key]), counted())


def compressed(plain: bytes, algorithm: int = 0) -> bytes:
    return b"\x09" + bytes(msgpack.packb({"Algo": algorithm, "Buf": lzw(plain)}, use_bin_type=False))


def summed(plain: bytes) -> bytes:
    return struct.pack(">BI", 12, crc32(plain)) + plain


def compound(*parts: bytes) -> bytes:
    return struct.pack(f">BB{len(parts)}H", 7, len(parts), *map(len, parts)) + b"".join(parts)


PLAIN = packets()


# --------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("key", [None, bytes(32)])
@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4, 255])
def test_sealed_bytes_can_be_opened(key: bytes | None, crc: bool, count: int) -> None:
    mine = packets(key)
    parts = (PARTS * 64)[:count]
    datagram = mine.seal(parts, crc=crc)
    assert mine.open(datagram) == Opened((MESSAGES * 64)[:count], 0)
    wrapping = COMPOUND_BYTES + count * PART_BYTES if count > 1 else 0
    assert len(datagram) == sum(map(len, parts)) + wrapping + mine.overhead(crc)


def test_layers_have_the_expected_bytes() -> None:
    assert PLAIN.seal(PARTS[:1], crc=False) == PARTS[0]
    assert PLAIN.seal(PARTS[:2], crc=False) == compound(*PARTS[:2])
    assert PLAIN.seal(PARTS[:2], crc=True) == summed(compound(*PARTS[:2]))
    sealed = packets(bytes(32)).seal(PARTS[:2], crc=True)
    assert sealed[:13] == b"\x01" + bytes(12)
    assert Keyring([bytes(32)]).open(sealed, b"") == summed(compound(*PARTS[:2]))


def test_every_datagram_has_a_nonce_of_its_own() -> None:
    mine = packets(bytes(32))
    assert mine.seal(PARTS[:1], crc=False) != mine.seal(PARTS[:1], crc=False)


def test_too_many_or_too_long_messages_are_refused() -> None:
    for parts in ([], [b"\x08"] * 256, [b"\x08", bytes(65536)]):
        with pytest.raises(TooLarge):
            PLAIN.seal(parts, crc=False)


# ----------------------------------------------------------------------------------------------------- of a real agent


def test_packets_of_an_agent() -> None:
    alive = [
        Alive(1, "sandq1", SANDQ, b"\xff\x81\xa7cluster\xa1t", VSN),
        Alive(1, "agent1", AGENT, b"\xff\x81\xa4role\xa3web", VSN),
    ]
    assert PLAIN.open(agent_bytes.PING) == Opened([Ping(2, "sandq1", AGENT, "agent1")], 0)
    assert PLAIN.open(agent_bytes.NACK) == Opened([Nack(78)], 0)
    assert PLAIN.open(agent_bytes.DEAD) == Opened([Dead(1, "sandq1", "agent1")], 0)
    ping, suspect = PLAIN.open(agent_bytes.PING_AND_SUSPECT).messages
    assert (ping, suspect) == (Ping(3, "sandq1", AGENT, "agent1"), Suspect(1, "sandq1", "agent1"))
    assert PLAIN.open(agent_bytes.TWO_ALIVE) == Opened(alive, 0)
    ack, *others = PLAIN.open(agent_bytes.ACK_AND_TWO_ALIVE).messages
    assert isinstance(ack, Ack) and ack.seq == 77 and ack.payload.startswith(b"\x01\x84\xaaAdjustment")
    assert others == alive and [decode_tags(one.meta) for one in alive] == [{"cluster": "t"}, {"role": "web"}]


def test_sealed_packets_of_an_agent() -> None:
    mine = packets(agent_bytes.KEY)
    assert mine.open(agent_bytes.SEALED_PING).messages[0] == Ping(2, "sandq1", AGENT, "agent1")
    assert {type(found) for found in mine.open(agent_bytes.SEALED_TWO_ALIVE).messages} == {Alive}


# ------------------------------------------------------------------------------------------------------------ refusals


def test_all_layers_together_are_opened() -> None:
    whole = summed(compressed(compound(*PARTS)))
    assert PLAIN.open(whole) == Opened(MESSAGES, 0)


@pytest.mark.parametrize(
    ("datagram", "says"),
    [
        (b"", "an empty datagram"),
        (b"\xf4\x01a" + PARTS[0], "has a label"),
        (b"\xf4\x00" + PARTS[0], "has a label"),
        (b"\x0c", "checksum"),
        (b"\x0c\x00\x00\x00", "checksum"),
        (b"\x0c\x00\x00\x00\x01" + PARTS[0], "checksum"),
        (summed(b""), "without a byte"),
        (summed(summed(PARTS[0])), "type 12"),
        (compressed(summed(PARTS[0])), "type 12"),
        (compressed(compressed(PARTS[0])), "type 9"),
        (compressed(b""), "without a byte"),
        (compressed(PARTS[0], algorithm=1), "algorithm 1"),
        (b"\x09\x80", "0 compressed bytes"),
        (b"\x09" + PARTS[0], "no msgpack"),
        (compressed(bytes(70_000)), "more than 65535"),
        (b"\x07", "a compound of 0 messages"),
        (b"\x07\x00", "a compound of 0 messages"),
        (b"\x07\x02\x00\x05\x00", "a compound of 2 messages in 5"),
        (b"\x06\x83", "type 6"),
        (b"\x0a" + bytes(40), "type 10"),
        (PARTS[0][:-1], "type 0"),
    ],
)
def test_invalid_input_is_refused(datagram: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        PLAIN.open(datagram)


def test_malformed_encrypted_content_is_refused() -> None:
    mine, ring = packets(bytes(32)), Keyring([bytes(32)])
    for inside in (b"", b"\xf4\x00" + PARTS[0], ring.seal(PARTS[0], b"", bytes(12))):
        with pytest.raises(ProtocolError):
            mine.open(ring.seal(inside, b"", bytes(12)))


@pytest.mark.parametrize(
    ("parts", "good", "malformed"),
    [
        ([PARTS[0], b"", PARTS[1]], 2, 1),
        ([PARTS[0][:-1], PARTS[1]], 1, 1),
        ([b"\xff", b"\x06\x80"], 0, 2),
        ([PARTS[0], compound(PARTS[1])], 1, 1),
        ([PARTS[0], compressed(PARTS[1])], 1, 1),
        ([PARTS[0], summed(PARTS[1])], 1, 1),
    ],
)
def test_a_bad_message_does_not_lose_the_others(parts: list[bytes], good: int, malformed: int) -> None:
    opened = PLAIN.open(compound(*parts))
    assert (len(opened.messages), opened.malformed) == (good, malformed)


def test_a_compound_that_was_cut_loses_its_last_messages_only() -> None:
    whole = compound(*PARTS)
    # The last message is a user message, which stays readable after any cut.
    assert PLAIN.open(whole[:-1]) == Opened(MESSAGES[:3], 1)
    assert PLAIN.open(whole[: len(compound(*PARTS[:2])) + 2 * PART_BYTES]) == Opened(MESSAGES[:2], 2)
    assert PLAIN.open(whole + b"x") == Opened(MESSAGES, 1)


def test_member_with_a_key_refuses_plain_packets() -> None:
    mine = packets(bytes(32))
    for datagram in (PARTS[0], summed(compound(*PARTS)), encode(IndirectPing(1, HERE, "b", True, HERE, "a"))):
        with pytest.raises(ProtocolError, match=r"not encrypted|no key fits"):
            mine.open(datagram)
    with pytest.raises(ProtocolError, match="no key fits"):
        packets(bytes(16)).open(mine.seal(PARTS, crc=True))


def test_encrypted_packet_without_key_raises_clear_error() -> None:
    with pytest.raises(ProtocolError, match="is it encrypted"):
        PLAIN.open(packets(bytes(32)).seal(PARTS, crc=True))
    indirect = IndirectPing(1, HERE, "b", True, HERE, "a")
    assert PLAIN.open(encode(indirect)) == Opened([indirect], 0)


def test_a_full_packet_fits() -> None:
    mine = packets(bytes(32))
    room = PACKET_BYTES - mine.overhead(True) - COMPOUND_BYTES - 2 * PART_BYTES
    parts = [PARTS[0], b"\x08" + bytes(room - len(PARTS[0]) - 1)]
    assert len(mine.seal(parts, crc=True)) == PACKET_BYTES
