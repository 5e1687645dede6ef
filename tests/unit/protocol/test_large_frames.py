"""Tests that a large frame gives the same result if it is decoded in steps."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from sandq.model.errors import FrameTooLarge, ProtocolError, SandqError
from sandq.protocol.frames import CONTROL_BYTES, ITEMS_MAX, PARTS_MAX, FrameReader, LargeFrame

LARGE = {
    "bytes": [3, 1, "t", bytes(300_000), None],
    "many numbers": [3, 1, [*range(60_000)], "behind"],
    "many arrays": [9, 1, 5, 0, [[number, None] for number in range(50_000)]],
    "ranges within an item": [9, 1, 5, 0, [[5, [[bytes(16), 1]] * 20_000], [6, None]]],
    "an ack of as much as there may be": [9, 1, 5, 0, [[number, [[bytes(16), 1]]] for number in range(ITEMS_MAX)]],
    "a map": [3, 1, {str(number): [number] for number in range(40_000)}],
    "nested": [3, 1, [[[[[[[[[[[*range(40_000)], "x" * 20_000]]]]]]]]]]],
}


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def read(data: bytes) -> Any:
    reader = FrameReader(defer_bytes=1000)
    (large,) = reader.feed(data)
    assert isinstance(large, LargeFrame)
    return large


def decoded(large: LargeFrame) -> tuple[Any, list[int]]:
    steps, works = large.decode(), []
    while True:
        try:
            works.append(next(steps))
        except StopIteration as end:
            return end.value, works


@pytest.mark.parametrize("name", LARGE)
def test_large_frame_is_decoded_equally(name: str) -> None:
    data = framed(msgpack.packb(LARGE[name]))
    frame, works = decoded(read(data))
    assert [frame] == FrameReader().feed(data)
    assert works


def test_many_items_are_many_steps() -> None:
    _, works = decoded(read(framed(msgpack.packb(LARGE["many arrays"]))))
    assert len(works) > 100 and max(works) < 500
    _, works = decoded(read(framed(msgpack.packb(LARGE["ranges within an item"]))))
    assert len(works) > 50 and max(works) < 500


def test_small_ones_before_and_behind_it_are_frames() -> None:
    small = framed(msgpack.packb([17, 1]))
    reader = FrameReader(defer_bytes=1000)
    large = framed(msgpack.packb(LARGE["bytes"]))
    first, second, third = reader.feed(small + large + small)
    assert first == third == [17, 1]
    assert decoded(second)[0] == LARGE["bytes"]


def test_feed_returns_at_most_the_requested_number_of_frames() -> None:
    small, large = framed(msgpack.packb([17, 1])), framed(msgpack.packb(LARGE["bytes"]))
    reader = FrameReader(defer_bytes=1000)
    assert [type(each) for each in reader.feed(small + large + small + small[:5], 2)] == [list, LargeFrame]
    assert reader.feed(b"", 2) == [[17, 1]]
    assert reader.buffered_bytes == 5 and reader.wanted_bytes == len(small)
    assert reader.feed(small[5:], 2) == [[17, 1]]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (msgpack.packb([3, 1, [[number] for number in range(70_000)]]), ProtocolError),
        (msgpack.packb([3, 1, *(CONTROL_BYTES // 50_000 + 1) * ["x" * 50_000]]), FrameTooLarge),
        (msgpack.packb([3, 1, bytes(80_000)]) + b"\0", ProtocolError),
        (b"\x93\x03\x01\xdc\xff\xff" + bytes(80_000), ProtocolError),
        (b"\xdd\xff\xff\xff\xff" + bytes(80_000), ProtocolError),
        (b"\x91" * 80_000, ProtocolError),
        (b"\xc1" * 80_000, ProtocolError),
        (msgpack.packb([[*range(60_000)], 1]), ProtocolError),
        (msgpack.packb("x" * 80_000), ProtocolError),
        (msgpack.packb([3, 1, [[[]] * 65_000] * (PARTS_MAX // 65_000 + 1)]), ProtocolError),
        (msgpack.packb([3, 1, [[{}] * 65_000] * (PARTS_MAX // 65_000 + 1)]), ProtocolError),
        (msgpack.packb([3, 1, [msgpack.ExtType(5, b"x"), bytes(80_000)]]), ProtocolError),
        (msgpack.packb([300, 1, bytes(80_000)]), ProtocolError),
        (msgpack.packb([3, -1, bytes(80_000)]), ProtocolError),
    ],
)
def test_malformed_input_is_a_protocol_error(body: bytes, kind: type[SandqError]) -> None:
    with pytest.raises(kind):
        decoded(read(framed(body)))
