"""Tests of the wire of a connection: its frames, queue and end are independent of the encoding of the bytes."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio
import trio.testing

from sandq.broker.event_loop import FIRST_WORK
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.peers.stream import PeerStream
from sandq.model.caller import ANONYMOUS, Caller
from sandq.protocol.frames import FrameReader, Type, encode_frame, encode_reply
from sandq.server.connection import Connection
from sandq.server.send_queue import Buffer, SendQueue
from sandq.server.wire import RECORD_BITS, PlainWire, Transform, TransformedWire, Wire
from sandq.tls.session import RECORDS_AT_ONCE, TlsSession
from tests.support.nodes.one_connection import NothingTogether, one_connection
from tests.support.stopped_time import loop_clock
from tests.support.tls import NAME, TlsTransform, contexts
from tests.support.waiting import until_holds

__all__ = ["loop_clock"]

LARGE = 300_000


class Blocks:
    """A wire that sends HI, waits for HI, and then sends blocks of up to seven bytes in reverse after their length."""

    HI = b"HI"
    SIZE = 7
    records = 0
    is_behind = False

    def __init__(self) -> None:
        self.is_open = self.has_ended = False
        self._words = self.HI
        self._kept = bytearray()

    def decode(self, data: bytes) -> bytes:
        """Return the plain bytes of complete blocks. A handshake comes first."""
        self._kept += data
        if not self.is_open:
            if len(self._kept) < len(self.HI):
                return b""
            assert self._kept[: len(self.HI)] == self.HI
            del self._kept[: len(self.HI)]
            self.is_open = True
        plain = bytearray()
        while self._kept and len(self._kept) > self._kept[0]:
            size = self._kept[0]
            if not size:
                self.has_ended = True
                break
            plain += self._kept[size:0:-1]
            del self._kept[: 1 + size]
        return bytes(plain)

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        words, self._words = self._words, b""
        joined = b"".join(plain)
        blocks = [joined[at : at + self.SIZE] for at in range(0, len(joined), self.SIZE)]
        return words + b"".join(bytes([len(block)]) + block[::-1] for block in blocks)

    def end(self) -> None:
        self._words += b"\0"


TRANSFORMS: Final[dict[str, Callable[[], tuple[Any, Any]]]] = {
    "blocks": lambda: (Blocks(), Blocks()),
    "tls": lambda: (TlsTransform(), TlsTransform(is_server=False)),
}
"""Return the wires of both ends."""


class End:
    """The queue and wire of one end."""

    def __init__(self, transform: Any) -> None:
        self.queue = SendQueue()
        self.wire: Wire = PlainWire(self.queue) if transform is None else TransformedWire(self.queue, transform)

    def carry(self, other: End, rng: random.Random) -> bytes:
        """Carry the due bytes in random pieces. Return the bytes that the other end receives."""
        got = b""
        while self.wire.is_due():
            buffers = self.wire.head(rng.choice([1, 10, 5000, 1 << 20]))
            data = b"".join(buffers)[: rng.choice([1, 10, 5000, 1 << 20])]
            self.queue.drop(self.wire.left(len(data)))
            step = rng.choice([1, 1000, 1 << 20])
            for at in range(0, len(data), step):
                got += other.wire.received(data[at : at + step]) or b""
        return got


@pytest.mark.parametrize("kind", ["plain", *TRANSFORMS])
@pytest.mark.parametrize("seed", range(4))
def test_sent_bytes_arrive_in_any_pieces(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    server, client = [End(transform) for transform in (TRANSFORMS[kind]() if kind != "plain" else (None, None))]
    sent, got = bytearray(), bytearray()
    for _ in range(30):
        for _ in range(rng.randrange(4)):
            part = rng.randbytes(rng.choice([1, 20, 3000, 40_000]))
            server.queue.add(part)
            sent += part
        client.carry(server, rng)
        got += server.carry(client, rng)
    for _ in range(3):  # the first bytes are answered
        client.carry(server, rng)
        got += server.carry(client, rng)
    assert got == sent and not server.queue.bytes


def test_bytes_are_held_until_all_that_became_of_them_has_left() -> None:
    server = End(Blocks())
    server.queue.add(bytes(100))
    assert b"".join(server.wire.head(1000)) == b"HI"  # nothing else yet, because the other side has not sent HI
    assert server.queue.drop(server.wire.left(2)) == 0 and not server.wire.is_due()
    assert server.wire.received(b"HI") == b""
    became = len(b"".join(server.wire.head(1000)))
    assert became > 100
    for _ in range(became - 1):
        assert server.wire.is_due() and server.queue.drop(server.wire.left(1)) == 0
    assert server.queue.drop(server.wire.left(1)) == 100 and not server.wire.is_due()


# -- a connection -----------------------------------------------------------------------------------------------------


class Echo(NothingTogether):
    """A session that answers each request with the requested number of bytes."""

    greeted = True

    def __init__(self) -> None:
        self.connection: Connection
        self.frames: list[Any] = []
        self.has_closed = trio.Event()

    def handle(self, frame: Any) -> None:
        self.frames.append(frame)
        if frame[0] == Type.WHY:
            self.connection.reply(frame[1], encode_reply(frame[1], bytes(frame[2])))

    def handled(self) -> None: ...

    def drained(self) -> None: ...

    async def closed(self) -> None:
        self.has_closed.set()


@asynccontextmanager
async def echoing(
    memory: MemoryBudget, transform: Transform | None = None
) -> AsyncIterator[tuple[Echo, trio.SocketStream]]:
    """Yield a TLS connection and the client's socket."""
    session = Echo()

    def make_session(connection: Connection) -> Echo:
        session.connection = connection
        return session

    caller = Caller(ANONYMOUS, "10.0.0.1:1")
    async with one_connection(make_session, caller=caller, memory=memory, transform=transform or TlsTransform()) as (
        _,
        client,
    ):
        yield session, client


def shaken_hands() -> tuple[TlsSession, TlsSession]:
    """Return the server's side and the client's side."""
    server = TlsSession(contexts()[0], is_server=True)
    client = TlsSession(contexts()[1], is_server=False, host=NAME)
    client.greet()
    while not (server.is_open and client.is_open):
        server.greet(client.words())
        client.greet(server.words())
    return server, client


def tls_over(stream: trio.abc.Stream) -> trio.SSLStream[trio.abc.Stream]:
    return trio.SSLStream(stream, contexts()[1], server_hostname=NAME, https_compatible=True)


@pytest.fixture
def memory() -> MemoryBudget:
    return MemoryBudget(1 << 30)


async def test_frames_are_cut_again(memory: MemoryBudget) -> None:
    async with echoing(memory) as (session, socket_stream):
        client, reader, answers = tls_over(socket_stream), FrameReader(), []
        asked = b"".join(encode_frame(Type.WHY, number, 10 ** (number % 6)) for number in range(1, 13))
        for at in range(0, len(asked), 5):
            await client.send_all(asked[at : at + 5])
        while len(answers) < 12:
            answers += reader.feed(await client.receive_some(1000))
        assert [(frame[1], len(frame[2])) for frame in answers] == [(n, 10 ** (n % 6)) for n in range(1, 13)]
        assert session.connection.waiting_bytes == memory.answers.bytes == 0


async def test_a_client_that_says_nothing_more_ends_the_connection(memory: MemoryBudget) -> None:
    async with echoing(memory) as (session, socket_stream):
        client = tls_over(socket_stream)
        await client.send_all(encode_frame(Type.WHY, 1, 5))
        assert await client.receive_some(1000)
        await client.aclose()
        await session.has_closed.wait()


async def test_many_records_are_all_handled_and_then_the_end_that_came_with_them(memory: MemoryBudget) -> None:
    server, client = shaken_hands()
    many = 2 * RECORDS_AT_ONCE + 1
    data = b"".join(client.encode((encode_frame(Type.WHY, number, 5),)) for number in range(1, many + 1))
    client.end()
    async with echoing(memory, server) as (session, socket_stream):
        await socket_stream.send_all(data + client.words())
        await session.has_closed.wait()  # though the socket is open
        assert [frame[1] for frame in session.frames] == list(range(1, many + 1))


async def test_small_records_count_for_the_time_slice_of_their_sender(memory: MemoryBudget) -> None:
    server, client = shaken_hands()
    async with echoing(memory, server) as (session, socket_stream):
        frame = encode_frame(Type.METADATA, 1, "x" * 900)
        pieces = [client.encode((frame[at : at + 10],)) for at in range(0, len(frame), 10)]
        await socket_stream.send_all(b"".join(pieces))
        await until_holds(lambda: bool(session.frames))
        assert session.connection.time_slice.left <= FIRST_WORK - (len(pieces) >> RECORD_BITS)


async def test_last_bytes_arrive_before_the_end(memory: MemoryBudget) -> None:
    async with echoing(memory) as (_, socket_stream):
        client = tls_over(socket_stream)
        await client.send_all(b"\0\0\0\x01\xc1")  # no frame
        (error,) = FrameReader().feed(await client.receive_some(1000))
        assert error[:3] == [Type.ERROR, 0, "PROTOCOL"]
        assert await client.receive_some(1000) == b""


async def test_bytes_other_than_tls_end_the_connection(memory: MemoryBudget) -> None:
    async with echoing(memory) as (session, client):
        await client.send_all(encode_frame(Type.HELLO, 1, 2, "plain", {}))
        await session.has_closed.wait()
        assert not session.frames


async def test_unread_bytes_of_a_client_are_counted(memory: MemoryBudget) -> None:
    async with echoing(memory) as (session, socket_stream):
        socket_stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client, reader, answers = tls_over(socket_stream), FrameReader(), []
        many = 40
        await client.send_all(b"".join(encode_frame(Type.WHY, number, LARGE) for number in range(1, 1 + many)))
        await until_holds(lambda: session.connection.waiting_bytes > LARGE)
        assert memory.answers.bytes == session.connection.waiting_bytes
        while len(answers) < many:
            answers += reader.feed(await client.receive_some(65_536))
        assert [len(frame[2]) for frame in answers] == [LARGE] * many
        await until_holds(lambda: session.connection.waiting_bytes == memory.answers.bytes == 0)


# -- nodes ------------------------------------------------------------------------------------------------------------


async def test_frames_between_nodes_are_cut_again() -> None:
    near, far = trio.testing.memory_stream_pair()
    one, two = PeerStream(tls_over(near)), PeerStream(trio.SSLStream(far, contexts()[0], server_side=True))
    values = [bytes([number]) * size for number, size in enumerate((1, 100, 20_000, LARGE))]

    async def send(stream: PeerStream) -> None:
        for value in values:
            await stream.send(value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, one)
        nursery.start_soon(send, two)
        assert [await two.receive() for _ in values] == values
        assert [await one.receive() for _ in values] == values
    await one.aclose()
    await two.aclose()
