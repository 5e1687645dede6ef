"""Tests of frames between nodes: complete frames only, size limits, and time limits."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sandq.broker.peers import wrong_protocol
from sandq.broker.peers.greeting import shake_hands
from sandq.broker.peers.handshake import Refusal, Steps
from sandq.broker.peers.stream import ARRAY_ITEMS, BULK_SILENCE_S, FRAME_BYTES, PeerStream, decode, encode
from sandq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError, WrongPort
from sandq.protocol.frames import FrameReader, decode_error
from sandq.protocol.requests import Hello


def pair() -> tuple[PeerStream, trio.abc.HalfCloseableStream]:
    """Return a stream and the raw end of its peer."""
    near, far = trio.testing.memory_stream_pair()
    return PeerStream(near), far


def frame(value: Any) -> bytes:
    body = encode(value)
    return struct.pack(">I", len(body)) + body


async def test_values_arrive_in_any_pieces() -> None:
    values = [None, 5, (1, b"x" * 70_000), {7: ("a", b"b")}, (), -1]
    stream, far = pair()
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            data = b"".join(frame(value) for value in values)
            for at in range(0, len(data), 977):
                await far.send_all(data[at : at + 977])

        nursery.start_soon(trickle)
        assert [await stream.receive() for _ in values] == values


async def test_both_ends() -> None:
    near, far = (PeerStream(end) for end in trio.testing.memory_stream_pair())
    await near.send((1, {"a": [b"c"]}))
    await near.send(2)
    assert (await far.receive(), await far.receive()) == ((1, {"a": (b"c",)}), 2)
    await far.aclose()
    with pytest.raises(ConnectionLost):
        await near.receive()
    with pytest.raises(ConnectionLost):
        await near.send(3)
    with pytest.raises(ConnectionLost):
        await far.receive()


async def test_large_values_are_sent_over_sockets() -> None:
    one, other = trio.socket.socketpair()
    near, far = PeerStream(trio.SocketStream(one)), PeerStream(trio.SocketStream(other))
    values = [1, b"x" * (3 << 20), 2, b"y" * (1 << 20)]
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for value in values:
                await near.send(value)

        nursery.start_soon(send)
        assert [await far.receive() for _ in values] == values
    await far.aclose()
    with pytest.raises(ConnectionLost, match="the connection broke"):
        for _ in range(2):
            await near.send(3)
    await near.aclose()
    with pytest.raises(ConnectionLost):
        await near.send(4)


async def test_a_frame_beyond_the_limit_is_refused_at_its_length() -> None:
    stream, far = pair()
    await far.send_all(struct.pack(">I", FRAME_BYTES + 1))
    with pytest.raises(FrameTooLarge, match=f"{FRAME_BYTES} is the limit"):
        await stream.receive()
    stream, far = pair()
    await far.send_all(struct.pack(">I", 4097))
    with pytest.raises(FrameTooLarge, match="4096 is the limit"):
        await stream.receive_body(4096)
    with pytest.raises(FrameTooLarge):
        encode(b"x" * FRAME_BYTES)


async def test_a_length_alone_takes_no_memory() -> None:
    stream, far = pair()
    await far.send_all(struct.pack(">I", FRAME_BYTES) + b"x" * 100)
    tracemalloc.start()
    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.receive)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91",
        msgpack.packb(1) * 2,
        b"\xa1\xff",
        msgpack.packb(msgpack.ExtType(1, b"x")),
        msgpack.packb(msgpack.Timestamp(1)),
        b"\xdd" + struct.pack(">I", ARRAY_ITEMS + 1) + b"\xc0" * (ARRAY_ITEMS + 1),
        b"\xdf" + struct.pack(">I", 70_000) + b"".join(b"\xce" + struct.pack(">I", n) + b"\xc0" for n in range(70_000)),
        b"\x91" * 5000 + b"\xc0",
    ],
    ids=lambda body: body[:4].hex(),
)
async def test_garbage_is_a_protocol_error(body: bytes) -> None:
    stream, far = pair()
    await far.send_all(struct.pack(">I", len(body)) + body)
    with pytest.raises(ProtocolError):
        await stream.receive()


@given(st.binary(max_size=300))
def test_decoding_ends_in_a_value_or_a_protocol_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(memoryview(body))


async def test_silence_ends_both_directions(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = trio.testing.lockstep_stream_pair()
    stream = PeerStream(near)
    began = trio.current_time()
    with pytest.raises(ConnectionLost, match="nothing was received for 90 s"):
        await stream.receive()
    with pytest.raises(ConnectionLost, match="accepted no data for 90 s"):
        await stream.send(b"")
    assert trio.current_time() - began == 2 * BULK_SILENCE_S


async def test_a_large_frame_may_take_longer_than_the_silence(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    value = b"x" * (4 << 20)

    class Slow:
        """A stream that accepts one piece per second."""

        async def receive_some(self, most: int) -> bytes:
            await trio.sleep(1)
            return await far.receive_some(min(most, 256 << 10))

    sending, receiving = PeerStream(near, 3), PeerStream(Slow(), 3)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.send, value)
        assert await receiving.receive() == value
    assert trio.current_time() > 10


async def test_last_bytes_are_read_before_the_end(autojump_clock: trio.testing.MockClock) -> None:
    stream, far = pair()
    await far.send_all(b"what nobody reads")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.farewell, b"bye")
        assert await far.receive_some() == b"bye"
        assert await far.receive_some() == b""
        await far.aclose()
    stream, far = pair()
    began = trio.current_time()
    await stream.farewell(b"bye")
    assert trio.current_time() - began == 1, "not for ever"


async def test_a_refusal_is_sent_by_the_side_that_refuses_only() -> None:
    def refused_by(by_peer: bool) -> Steps:
        yield b"hello"
        raise Refusal("cluster", "why", by_peer=by_peer)

    for by_peer, expected in ((True, b""), (False, Refusal("cluster", "why").frame())):
        stream, far = pair()
        await far.send_all(frame("anything"))
        async with trio.open_nursery() as nursery:

            async def shake(stream: PeerStream = stream, by_peer: bool = by_peer) -> None:
                with pytest.raises(Refusal, match="why"):
                    await shake_hands(stream, refused_by(by_peer))
                await stream.aclose()

            nursery.start_soon(shake)
            said = b"".join([part async for part in far])
            await far.aclose()
        _, _, after = said.partition(b"hello")
        assert after[4:] == expected


# ----------------------------------------------------------------------------------------------------------- strangers


ADDRESSES = {"client": "127.0.0.1:7170", "http": "127.0.0.1:2108"}


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\n", b"POST /topics HTTP/1.1\r\n", b"DELETE /x HTTP/1.0"])
def test_browser_gets_the_right_port(request_line: bytes) -> None:
    said = wrong_protocol.answer(request_line[: wrong_protocol.HEAD_BYTES], ADDRESSES)
    head, _, text = said.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400") and f"Content-Length: {len(text)}" in head
    assert text.count("\n") == 1 and "peer port" in text and "HTTP belongs to 127.0.0.1:2108" in text


def test_client_gets_the_right_port() -> None:
    hello = Hello(2, "test", {}).frame(1)
    (frame,) = FrameReader().feed(wrong_protocol.answer(hello[: wrong_protocol.HEAD_BYTES], ADDRESSES))
    error = decode_error(frame)
    assert type(error) is WrongPort and "belongs to 127.0.0.1:7170" in error.message


def test_tls_client_gets_a_plain_error_and_a_node_gets_nothing() -> None:
    assert wrong_protocol.answer(b"\x16\x03\x01\x02\x00\x01", ADDRESSES).startswith(b"This is sandq's peer port")
    assert wrong_protocol.answer(frame(("sandq-peer", 1))[:6], ADDRESSES) == b""
    assert wrong_protocol.answer(b"\xff" * 6, ADDRESSES) == b""
    assert b"HTTP belongs" not in wrong_protocol.answer(b"GET / ", {})


@given(st.binary(min_size=6, max_size=6))
def test_any_head_has_an_answer_or_none(head: bytes) -> None:
    assert isinstance(wrong_protocol.answer(head, ADDRESSES), bytes)
