"""Tests of LZW against the output of Go's compress/lzw (1.26)."""

from __future__ import annotations

import tracemalloc
from base64 import b64decode
from hashlib import sha256, shake_128

import pytest

from sandq.gossip.lzw import STEP_BYTES, STEP_PLAIN_BYTES, decode, decoding
from sandq.model.errors import ProtocolError
from tests.support.gossip.lzw_encoder import CLEAR, END, Bits, encode


def stream(size: int, mask: int = 255) -> bytes:
    """Pseudorandom bytes. The mask makes them repeat more often."""
    return bytes(byte & mask for byte in shake_128(b"lzw").digest(size))


SMALL = [
    (b"", "AAMC"),
    (b"s", "AOcEBA=="),
    (b"aaa", "AMMIDAg="),
    (b"aaaaaaaaaaaaaaaaaaaa", "AMMIHEiwYMGA"),
    (b"abababababab", "AMOIEUhwoMGA"),
    (b"sandq gossip, sandq gossip, sandq gossip", "AOeEcUMmDogzb+bMSQOHBQiBBA0iVMjQIcSCBxMuhBMQ"),
]
LARGE = [
    # A table is full after 3838 codes.
    (stream(3837), 5254, "40f1972b51fc7340d4e9227c5db5edaf88d5350e15f7f9198952ef4ec1bc7434"),
    (stream(3838), 5255, "d576ff2defe425c8aa93ccf6463cabe87146730f68a36273f1259f5e912b458a"),
    (stream(3839), 5257, "f91c33e6efb0c2a7074662de5a09e55d41cb16be73cf63385452f74460c50307"),
    (stream(3840), 5257, "b0c2c7ee865a59f88589b65a331809117359aa6c833bbd21d5cc1ec4d59ab66f"),
    (stream(100_000), 136861, "4527b8ee021f5b7ed971e8fc4aaa772874a58c2bf84cffbb8771c897e493ee65"),
    (stream(100_000, 3), 29855, "d65b020efddb5cf0184d684854d39a38e77ef1e8b8c6786e702a0187663228bd"),
    (b"a" * 300_000, 941, "5041589753ce84daa5e501c0348dd912c3b0abb244bf83325735a11f9a183351"),
]


def codes(*found: int, width: int = 9) -> bytes:
    bits = Bits()
    for code in found:
        bits.put(code, width)
    return bits.bytes()


@pytest.mark.parametrize(("plain", "compressed"), SMALL)
def test_small_ones(plain: bytes, compressed: str) -> None:
    assert decode(b64decode(compressed), len(plain)) == plain


@pytest.mark.parametrize(("plain", "size", "digest"), LARGE, ids=range(len(LARGE)))
def test_large_ones_with_full_tables(plain: bytes, size: int, digest: str) -> None:
    compressed = encode(plain)
    assert (len(compressed), sha256(compressed).hexdigest()) == (size, digest), (
        "the encoder of the tests differs from Go's encoder"
    )
    assert decode(compressed, len(plain)) == plain


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 3838, 3839, 9000])
@pytest.mark.parametrize("first_clear", [True, False])
@pytest.mark.parametrize("clears", [True, False])
def test_older_writers_and_others(size: int, first_clear: bool, clears: bool) -> None:
    """Go before 1.17 began without a CLEAR. A table may stay full."""
    for plain in (stream(size), stream(size, 1)):
        assert decode(encode(plain, first_clear=first_clear, clears=clears), size) == plain


def test_code_that_refers_to_itself_is_decoded() -> None:
    assert decode(codes(CLEAR, 97, 258, 259, END), 6) == b"aaaaaa"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        codes(CLEAR),
        codes(97, 98),
        codes(258, END),
        codes(CLEAR, 258, END),
        codes(97, 259, END),
        codes(97, CLEAR, 258, END),
        codes(97, END) + b"\x00",
    ],
    ids=lambda data: data.hex() or "nothing",
)
def test_corrupt_data_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data, 100)


def test_a_cut_is_refused_wherever_it_is() -> None:
    compressed = encode(stream(700))
    for size in range(len(compressed)):
        with pytest.raises(ProtocolError):
            decode(compressed[:size], 10_000)


def test_decoding_ends_at_the_limit() -> None:
    compressed = encode(bytes(1_000_000))
    with pytest.raises(ProtocolError, match="more than 65535"):
        decode(compressed, 65535)
    assert len(compressed) < 3000
    with pytest.raises(ProtocolError, match="more than 2"):
        decode(encode(b"abc"), 2)


def test_a_full_table_does_not_grow() -> None:
    plain = stream(200_000)
    compressed = encode(plain, clears=False)
    tracemalloc.start()
    try:
        assert decode(compressed, len(plain)) == plain
        # An entry for each code would take 8 MB.
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("plain", [stream(30_000), bytes(3_000_000)], ids=["many codes", "long ones"])
def test_decoding_steps_are_bounded_by_input_and_output(plain: bytes) -> None:
    compressed = encode(plain)
    steps = len([*decoding(compressed, len(plain))])
    assert steps >= max(len(compressed) // STEP_BYTES, len(plain) // (2 * STEP_PLAIN_BYTES)) > 4
