"""Gossip reads all messages that it sends, and rejects any other bytes only with ProtocolError."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.gossip import lzw
from sandq.gossip.keyring import OVERHEAD, Keyring
from sandq.gossip.messages import (
    META_BYTES,
    Ack,
    Alive,
    Dead,
    Err,
    IndirectPing,
    Nack,
    Ping,
    Suspect,
    User,
    decode,
    encode,
)
from sandq.gossip.packets import Opened, Packets
from sandq.gossip.serf_messages import (
    JoinIntent,
    LeaveIntent,
    SerfState,
    decode_serf,
    decode_tags,
    encode_serf,
    encode_tags,
)
from sandq.gossip.streams import NodeState, PushPull, StreamMessage, Streams
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError, TooLarge
from tests.support.examples import examples
from tests.support.gossip.lzw_encoder import encode as compress

MEMORY_BYTES = 2 << 20
"""Maximum memory that a few hundred bytes may use while they are read, in bytes."""


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=32)
# An IPv4 address in IPv6 is read as the IPv4 address.
IPV6 = st.builds(IPv6Address, numbers(128)).filter(lambda host: host.ipv4_mapped is None)
HOSTS = st.one_of(st.builds(IPv4Address, numbers(32)), IPV6).map(str)
ADDRESSES = st.builds(Address, HOSTS, st.integers(1, 65535))
SOURCES = st.none() | ADDRESSES
METAS = st.binary(max_size=META_BYTES)
VSNS = st.just(()) | st.tuples(*[numbers(8)] * 6)
SIMPLE = [
    st.builds(Ping, numbers(32), NAMES, SOURCES, st.just("") | NAMES),
    st.builds(Ack, numbers(32), st.binary(max_size=300)),
    st.builds(Err, TEXTS),
]
MESSAGES = st.one_of(
    *SIMPLE,
    st.builds(IndirectPing, numbers(32), ADDRESSES, NAMES, st.booleans(), SOURCES, st.just("") | NAMES),
    st.builds(Nack, numbers(32)),
    st.builds(Suspect, numbers(32), NAMES, NAMES),
    st.builds(Dead, numbers(32), NAMES, NAMES),
    st.builds(Alive, numbers(32), NAMES, ADDRESSES, METAS, VSNS),
    st.builds(User, st.binary(max_size=300)),
)
NODES = st.builds(NodeState, NAMES, ADDRESSES, METAS, numbers(32), numbers(2), VSNS)
WHOLES: st.SearchStrategy[StreamMessage] = st.one_of(
    *SIMPLE,
    st.builds(User, st.binary(max_size=300)),
    st.builds(PushPull, st.booleans(), st.lists(NODES, max_size=5).map(tuple), st.binary(max_size=300)),
)
LTIMES = numbers(64)
SERFS = st.one_of(
    st.builds(LeaveIntent, LTIMES, NAMES, st.booleans()),
    st.builds(JoinIntent, LTIMES, NAMES),
    st.builds(
        SerfState,
        LTIMES,
        st.dictionaries(NAMES, LTIMES, max_size=20),
        st.lists(NAMES, max_size=20).map(tuple),
        LTIMES,
        LTIMES,
    ),
)
RINGS = st.sampled_from([None, Keyring([bytes(32)])])
NONCE = st.binary(min_size=12, max_size=12)
TAGS = st.dictionaries(TEXTS, TEXTS, max_size=12)


def no_nonce() -> bytes:
    return bytes(12)


# ------------------------------------------------------------------------------------------------------ round trips


@given(st.lists(MESSAGES, min_size=1, max_size=6), RINGS, st.booleans(), NONCE)
def test_packets_are_read_again(messages: list[Any], ring: Keyring | None, crc: bool, nonce: bytes) -> None:
    packets = Packets(ring, lambda: nonce)
    parts = [encode(message) for message in messages]
    assert [decode(part) for part in parts] == messages
    assert packets.open(packets.seal(parts, crc=crc)) == Opened(messages, 0)


@given(WHOLES, RINGS, NONCE, st.booleans(), st.data())
def test_streams_are_read_again_in_any_pieces(
    whole: StreamMessage, ring: Keyring | None, nonce: bytes, squeezed: bool, data: st.DataObject
) -> None:
    streams = Streams(ring, lambda: nonce)
    sent = streams.seal(whole)
    if squeezed and ring is None:
        sent = compressed(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader = streams.reader()
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    found = [reader.feed(piece) for piece in pieces if piece]
    assert found == [None] * (len(found) - 1) + [whole]


def compressed(plain: bytes) -> bytes:
    buffer = compress(plain)
    return b"\x09\x82\xa4Algo\x00\xa3Buf\xdb" + len(buffer).to_bytes(4, "big") + buffer


@given(SERFS)
def test_serf_messages_are_read_again(message: LeaveIntent | JoinIntent | SerfState) -> None:
    assert decode_serf(encode_serf(message)) == message


@given(TAGS)
def test_tags_are_read_again_or_too_large(tags: dict[str, str]) -> None:
    try:
        meta = encode_tags(tags)
    except TooLarge:
        assert sum(len(key.encode()) + len(value.encode()) + 2 for key, value in tags.items()) > META_BYTES - 80
    else:
        assert len(meta) <= META_BYTES and decode_tags(meta) == tags


@given(st.binary(max_size=9000) | st.text("ab", max_size=9000).map(str.encode), st.booleans(), st.booleans())
def test_lzw_is_read_again(plain: bytes, first_clear: bool, clears: bool) -> None:
    assert lzw.decode(compress(plain, first_clear=first_clear, clears=clears), len(plain)) == plain


# --------------------------------------------------------------------------------------------------- any bytes -----


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Return valid bytes with random changes, removals and insertions."""
    # Bytes that begin something large are likelier than others.
    news = st.binary(max_size=3) | st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdf\x00\xff", b"\xdc\x00\x40"])
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        # Bytes that begin something large are likelier than others.
        news = draw(
            st.binary(max_size=3) | st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdf\x00\xff", b"\xdc\x00\x40"])
        )
        data[at : at + draw(st.integers(0, 3))] = news
    return bytes(data)


def any_pieces(streams: Streams, data: bytes) -> None:
    """Check that a reader gives the same result for all bytes at once and for single bytes, until the message ends."""
    said = []
    for size in (max(1, len(data)), 1):
        reader = streams.reader()
        found: object = None
        try:
            for start in range(0, len(data), size):
                found = reader.feed(data[start : start + size])
                if found is not None:
                    break
        except ProtocolError as error:
            found = str(error)
        said.append(found)
    assert said[0] == said[1]


KINDS = st.integers(0, 13).map(lambda kind: bytes((kind,)))
NOISE = st.binary(max_size=200) | st.builds(bytes.__add__, KINDS, st.binary(max_size=99))
RING = Keyring([bytes(32)])
PLAIN, SEALED = Packets(None, no_nonce), Packets(RING, no_nonce)
PLAIN_STREAMS, SEALED_STREAMS = Streams(None, no_nonce), Streams(RING, no_nonce)
ENCODED = MESSAGES.map(encode)
DATAGRAMS = st.builds(PLAIN.seal, st.lists(ENCODED, min_size=1, max_size=4), crc=st.booleans())
COMPOUNDS = st.builds(PLAIN.seal, st.lists(ENCODED, min_size=2, max_size=4), crc=st.just(False))
SENT = WHOLES.map(PLAIN_STREAMS.seal)
TAGS_SENT = st.dictionaries(NAMES, TEXTS, max_size=2).map(encode_tags)


def sealed(plain: bytes) -> bytes:
    """Return a sealed frame of a stream with this content."""
    header = b"\x0a" + (len(plain) + OVERHEAD).to_bytes(4, "big")
    return header + RING.seal(plain, header, bytes(12))


# Bytes are mutated before they are wrapped, so the reader meets the mutation below an intact wrapper.
READERS: dict[str, tuple[Callable[[bytes], object], st.SearchStrategy[bytes]]] = {
    "message": (decode, ENCODED),
    "packet": (PLAIN.open, DATAGRAMS),
    "compressed packet": (PLAIN.open, COMPOUNDS.map(compressed)),
    "in a compressed packet": (lambda data: PLAIN.open(compressed(data)), COMPOUNDS),
    "sealed packet": (SEALED.open, DATAGRAMS.map(lambda plain: RING.seal(plain, b"", bytes(12)))),
    "in a sealed packet": (lambda data: SEALED.open(RING.seal(data, b"", bytes(12))), DATAGRAMS),
    "stream": (lambda data: any_pieces(PLAIN_STREAMS, data), SENT),
    "compressed stream": (lambda data: any_pieces(PLAIN_STREAMS, data), SENT.map(compressed)),
    "sealed stream": (lambda data: any_pieces(SEALED_STREAMS, data), SENT.map(sealed)),
    "in a sealed stream": (lambda data: any_pieces(SEALED_STREAMS, sealed(data)), SENT),
    "serf": (decode_serf, SERFS.map(encode_serf)),
    "tags": (decode_tags, TAGS_SENT),
    "lzw": (lambda data: lzw.decode(data, 65535), st.binary(max_size=600).map(compress)),
}


@pytest.mark.parametrize(("read", "valid"), READERS.values(), ids=READERS.keys())
def test_any_bytes_are_read_or_raise_protocol_error(
    read: Callable[[bytes], object], valid: st.SearchStrategy[bytes]
) -> None:
    @settings(max_examples=examples(100))
    @given(mutated(valid) | NOISE)
    def each(data: bytes) -> None:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            read(data)
        except ProtocolError as error:
            assert len(str(error)) < 1000
        assert tracemalloc.get_traced_memory()[1] - before < MEMORY_BYTES

    tracemalloc.start()
    try:
        each()
    finally:
        tracemalloc.stop()
