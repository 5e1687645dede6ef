"""Tests of frames: cuts of a stream, limits, and errors."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import (
    FrameTooLarge,
    InvalidRequest,
    NotLeader,
    ProtocolError,
    SandqError,
    UnknownTopic,
    WrongPort,
)
from sandq.protocol.frames import (
    CONTROL_BYTES,
    ITEMS_MAX,
    RESERVED,
    Frame,
    FrameReader,
    Type,
    decode_error,
    encode_error,
    encode_frame,
    encode_reply,
    encode_with_tail,
)
from tests.support.examples import examples


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.lists(FIELDS, max_size=5)).map(
        lambda parts: [parts[0], parts[1], *parts[2]]
    ),
    max_size=6,
)


@settings(max_examples=examples(100), deadline=None)
@given(frames=FRAMES, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_encoded_frames_are_read_in_any_pieces(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(*frame) for frame in frames)
    places = sorted({0, len(stream), *[cut for cut in cuts if cut < len(stream)]})
    reader = FrameReader()
    found = [frame for start, stop in pairwise(places) for frame in reader.feed(stream[start:stop])]
    assert found == frames
    assert reader.buffered_bytes == 0


@settings(max_examples=examples(300), deadline=None)
@given(pieces=st.lists(st.binary(max_size=60), max_size=5), prefix=st.booleans())
def test_any_bytes_give_frames_or_a_model_error(pieces: list[bytes], prefix: bool) -> None:
    reader = FrameReader()
    try:
        for piece in pieces:
            for frame in reader.feed(framed(piece) if prefix else piece):
                assert type(frame[0]) is int and type(frame[1]) is int and 0 <= frame[0] <= 255 and frame[1] >= 0
    except (ProtocolError, WrongPort):
        pass


@settings(max_examples=examples(200), deadline=None)
@given(frames=FRAMES.filter(bool), place=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_no_other_exception(frames: list[Frame], place: int, bit: int) -> None:
    stream = bytearray(b"".join(encode_frame(*frame) for frame in frames))
    stream[place % len(stream)] ^= 1 << bit
    try:
        for frame in FrameReader(10_000).feed(bytes(stream)):
            decode_error(frame)
    except SandqError:
        pass


def test_frames_are_read_byte_by_byte() -> None:
    reader = FrameReader()
    stream = encode_frame(1, 2, "three") + encode_frame(4, 5)
    assert [frame for place in range(len(stream)) for frame in reader.feed(stream[place : place + 1])] == [
        [1, 2, "three"],
        [4, 5],
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93\x01\x02",  # an item is missing
        b"\x92\x01\x02\x03",  # one too many
        b"\x91\x01",
        b"\x90",
        b"\xc1",
        b"\x92\xa1a\x01",
        b"\x92\x01\xc0",
        b"\x92\x01\xff",  # request id -1
        b"\x92\xcd\x01\x00\x01",  # type 256
        b"\x92\xff\x01",
        b"\x92\xc3\x01",  # true is not 1
        b"\x82\x00\x01\x01\x02",
        b"\x01",
        b"\xa2ab",
        b"\x93\x01\x02\xa2\xff\xfe",  # not UTF-8
        b"\x93\x01\x02\x81\x01\x02",  # a map with a key that is no text
        b"\x93\x01\x02" + b"\x91" * 2000 + b"\x90",  # deep
        b"\x93\x01\x02\xdd\xff\xff\xff\xff",
        b"\x93\x01\x02\xc6\xff\xff\xff\xff",
        b"\x93\x01\x02\xdf\xff\xff\xff\xff",
    ],
)
def test_bad_frames(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(framed(body))


def test_a_frame_over_the_limit_is_refused_at_its_length() -> None:
    reader = FrameReader(100)
    assert reader.feed(framed(msgpack.packb([1, 2, b"x" * 90]))) == [[1, 2, b"x" * 90]]
    with pytest.raises(FrameTooLarge) as caught:
        reader.feed(struct.pack(">I", 101))
    assert caught.value.details == {"limit": "frame_bytes", "maximum": 100, "size": 101}


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1", b"POST /topics HTTP/1.1", b"PRI * HTTP/2.0", b"DELETE /", b"PATCH /"]
)
def test_http_request_is_distinguished_from_garbage(line: bytes) -> None:
    with pytest.raises(WrongPort, match="HTTP"):
        FrameReader().feed(line)
    with pytest.raises(WrongPort):
        reader = FrameReader()
        for place in range(len(line)):
            reader.feed(line[place : place + 1])
    reader = FrameReader()
    reader.feed(encode_frame(1, 1))
    with pytest.raises(FrameTooLarge):
        reader.feed(line)


def test_other_protocols_raise_wrong_port() -> None:
    with pytest.raises(WrongPort, match="TLS"):
        FrameReader().feed(bytes.fromhex("1603010200010001fc0303"))
    with pytest.raises(WrongPort, match="HTTP server"):
        FrameReader().feed(b"HTTP/1.1 400 Bad Request\r\n")


def test_size_of_decoded_frames_is_bounded() -> None:
    assert len(FrameReader().feed(encode_frame(1, 1, [0] * ITEMS_MAX))[0][2]) == ITEMS_MAX
    with pytest.raises(ProtocolError, match="max_array_len"):
        FrameReader().feed(encode_frame(1, 1, [0] * (ITEMS_MAX + 1)))
    with pytest.raises(ProtocolError, match="max_map_len"):
        FrameReader().feed(encode_frame(1, 1, {str(number): 0 for number in range(ITEMS_MAX + 1)}))
    batch = b"x" * (2 * CONTROL_BYTES)
    assert FrameReader().feed(encode_with_tail((1, 1, "a"), batch)) == [[1, 1, "a", batch]]
    arrays: list[Any] = [[[]] * ITEMS_MAX] * 100
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge) as caught:
            FrameReader().feed(encode_frame(1, 1, arrays, b"x" * 100))
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.details["limit"] == "control_bytes"
    with pytest.raises(ProtocolError):
        FrameReader().feed(framed(b"\xc1" * (CONTROL_BYTES + 1)))
    # A client has no limit, because its node answers with values within maps.
    answer = encode_frame(0, 1, [{"value": b"x" * CONTROL_BYTES}])
    with pytest.raises(FrameTooLarge):
        FrameReader().feed(answer)
    assert len(FrameReader(control_bytes=2 * CONTROL_BYTES).feed(answer)) == 1


def test_a_large_frame_in_pieces() -> None:
    stream = encode_with_tail((3, 7), bytes(10_000_000))
    reader = FrameReader()
    found = [frame for start in range(0, len(stream), 65_536) for frame in reader.feed(stream[start : start + 65_536])]
    assert len(found) == 1 and len(found[0][2]) == 10_000_000


@given(fields=st.lists(FIELDS, max_size=12), tail=st.binary(max_size=300))
def test_a_tail_is_a_field_as_others_are(fields: list[Any], tail: bytes) -> None:
    (frame,) = FrameReader().feed(encode_with_tail((1, 2, *fields), tail))
    assert frame == [1, 2, *fields, tail]


def test_errors_cross_the_wire() -> None:
    error = NotLeader("not here", node_id="n2", port=7171)
    found = decode_error(FrameReader().feed(encode_error(9, error))[0])
    assert type(found) is NotLeader and found.retriable
    assert (found.message, found.details) == ("not here", {"node_id": "n2", "port": 7171})
    odd = UnknownTopic("no", path=object)
    assert isinstance(decode_error(FrameReader().feed(encode_error(9, odd))[0]).details["path"], str)
    newer = SandqError("new")
    newer.code, newer.retriable = "SOMETHING_NEW", True
    found = decode_error(FrameReader().feed(encode_error(9, newer))[0])
    assert (type(found), found.code, found.retriable) == (SandqError, "SOMETHING_NEW", True)
    for broken in ([255, 1], [255, 1, 2, 3, 4, 5], [255, 1, "A", "b", 1, {}], [255, 1, "A", "b", True, None]):
        assert type(decode_error(broken)) is ProtocolError


def test_error_with_an_unpaired_surrogate_is_encoded_with_an_escape() -> None:
    wrong = InvalidRequest("no \ud800 here", name="\udfff")
    found = decode_error(FrameReader().feed(encode_error(9, wrong))[0])
    assert (found.message, found.details["name"]) == (r"no \ud800 here", r"\udfff")


def test_replies_and_reserved_numbers() -> None:
    assert FrameReader().feed(encode_reply(7, "a", None)) == [[0, 7, "a", None]]
    assert {*range(67, 72), 85} == RESERVED
    assert not RESERVED & {*Type}
    assert not issubclass(ProtocolError, InvalidRequest)
