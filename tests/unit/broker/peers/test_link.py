"""Tests of a link: order, joined frames, queue limits, keepalives, and the end."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.link import PING_S, QUEUE_BYTES, QUEUE_MOST_BYTES, SEND_BYTES, SILENCE_S, PeerLink
from sandq.broker.peers.stream import PeerStream
from sandq.model.errors import FrameTooLarge

PEER = Peer(PeerIdentity(node_id="node2", store_uuid="store-2", cluster_uuid=None, addresses={}), False)


class CountedStream(trio.abc.HalfCloseableStream):
    """A stream that records each `send_all`. While `stuck`, it accepts nothing. While `leaking`, nothing arrives."""

    def __init__(self, inner: trio.StapledStream[Any, Any]) -> None:
        self.inner = inner
        self.sizes: list[int] = []
        self.stuck = False
        self.leaking = False
        self.on_send: Callable[[], None] = lambda: None

    async def send_all(self, data: Any) -> None:
        """Count the bytes, then send them, drop them (`leaking`) or hang (`stuck`)."""
        self.sizes.append(len(data))
        self.on_send()
        if self.stuck:
            await trio.sleep_forever()
        elif self.leaking:
            await trio.lowlevel.checkpoint()
        else:
            await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self.inner.receive_some(max_bytes))

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def aclose(self) -> None:
        await self.inner.aclose()


class Bed:
    """A running link and the raw stream of its peer."""

    def __init__(self) -> None:
        near, far = trio.testing.memory_stream_pair()
        self.near = CountedStream(near)
        self.far = PeerStream(far)
        self.link = PeerLink(PEER, PeerStream(self.near))
        self.frames: list[tuple[int, Any]] = []
        self.ended = trio.Event()

    async def run(self) -> None:
        await self.link.run(lambda kind, body, size: self.frames.append((kind, body)))
        self.ended.set()

    async def ping(self) -> None:
        """Send keepalives from the far end."""
        while True:
            await self.far.send((0, None))
            await trio.sleep(1)


@asynccontextmanager
async def running(*, alive: bool = True) -> AsyncIterator[Bed]:
    """Run a bed with its tasks."""
    bed = Bed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.run)
        if alive:
            nursery.start_soon(bed.ping)
        yield bed
        nursery.cancel_scope.cancel()


async def test_frames_go_in_both_directions_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        assert all(bed.link.send(1 + number % 255, [number, b"x"]) for number in range(1000))
        assert [await bed.far.receive() for _ in range(1000)] == [
            (1 + number % 255, (number, b"x")) for number in range(1000)
        ]
        for number in range(100):
            await bed.far.send((9, number))
        await trio.testing.wait_all_tasks_blocked()
        assert bed.frames == [(9, number) for number in range(100)]
        assert bed.link.waiting_bytes == 0 and not bed.link.why


async def test_pending_frames_are_sent_together(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        for number in range(500):
            bed.link.send(1, number)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.near.sizes) == 1


async def test_long_queue_is_not_copied_completely(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        bed.near.leaking = True
        tracemalloc.start()
        try:
            for _ in range(24):
                bed.link.send(1, bytes(SEND_BYTES))
            queued, _ = tracemalloc.get_traced_memory()
            assert queued > 24 * SEND_BYTES
            tracemalloc.reset_peak()
            await trio.testing.wait_all_tasks_blocked()
            assert bed.link.waiting_bytes == 0
            assert tracemalloc.get_traced_memory()[1] < queued + 4 * SEND_BYTES
        finally:
            tracemalloc.stop()


async def test_a_sign_of_life_only_when_nothing_else_was_sent(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        await trio.sleep(10 * PING_S + PING_S / 2)
        assert len(bed.near.sizes) == 10
        assert [await bed.far.receive() for _ in range(10)] == [(0, None)] * 10
        for number in range(50):
            bed.link.send(1, number)
            await trio.sleep(PING_S / 5)
        assert [await bed.far.receive() for _ in range(50)] == [(1, number) for number in range(50)]
        assert bed.frames == [], "keepalives must not reach the frame handler"


async def test_frames_queued_during_a_send_need_no_keepalive(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        more = iter([2])
        bed.near.on_send = lambda: [bed.link.send(1, number) for number in more] and None
        bed.link.send(1, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.near.sizes) == 2
        assert [await bed.far.receive() for _ in range(2)] == [(1, 1), (1, 2)]


async def test_closing_ends_it_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        bed.link.close("enough")
        bed.link.close("another reason")
        await bed.ended.wait()
        assert trio.current_time() == began and bed.link.why == "enough"


async def test_idle_links_stay(autojump_clock: trio.testing.MockClock) -> None:
    """Keepalives alone keep the links open."""
    links = [PeerLink(PEER, PeerStream(end)) for end in trio.testing.memory_stream_pair()]
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.run, lambda kind, body: None)
        await trio.sleep(100 * SILENCE_S)
        assert [link.why for link in links] == ["", ""]
        nursery.cancel_scope.cancel()


async def test_silence_ends_it(autojump_clock: trio.testing.MockClock) -> None:
    async with running(alive=False) as bed:
        await trio.sleep(SILENCE_S - 0.01)
        assert not bed.link.why
        await bed.far.send((0, None))
        began = trio.current_time()
        await bed.ended.wait()
        assert trio.current_time() - began == SILENCE_S
        assert bed.link.why == "nothing was received for 3 s"
        assert not bed.link.send(1, None)


async def test_a_peer_that_takes_nothing_ends_it(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        bed.near.stuck = True
        bed.link.send(1, None)
        began = trio.current_time()
        await bed.ended.wait()
        assert trio.current_time() - began == SILENCE_S
        assert bed.link.why == "the peer accepted no data for 3 s"


async def test_queue_of_link_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as bed:
        bed.near.stuck = True
        piece = b"x" * (1 << 20)
        while bed.link.accepts:
            assert bed.link.send(1, piece)
        assert QUEUE_BYTES <= bed.link.waiting_bytes < QUEUE_BYTES + 2 * len(piece)
        assert bed.link.send(2, "a sign of life goes on"), "room is advice"
        while bed.link.send(1, piece):
            assert bed.link.waiting_bytes <= QUEUE_MOST_BYTES
        assert "wait to be sent" in bed.link.why, "the link must close instead of losing one frame"
        await bed.ended.wait()


async def test_a_frame_that_is_too_large_is_the_callers_fault() -> None:
    async with running() as bed:
        with pytest.raises(FrameTooLarge):
            bed.link.send(1, b"x" * (64 << 20))
        assert bed.link.send(1, None), "the link must continue"


@pytest.mark.parametrize("value", [None, 5, (), (1,), (1, 2, 3), ("1", 2), (True, 2), (-1, 2), (256, 2), {1: 2}, "12"])
async def test_unexpected_frame_ends_a_link(value: object) -> None:
    async with running(alive=False) as bed:
        await bed.far.send((7, "before"))
        await bed.far.send(value)
        await bed.far.send((7, "behind"))
        await bed.ended.wait()
        assert bed.frames == [(7, "before")]
        assert "must be an array" in bed.link.why


async def test_closed_link_delivers_no_frames() -> None:
    """Frames that were received before the close are dropped too."""
    near, far = trio.testing.memory_stream_pair()
    link = PeerLink(PEER, PeerStream(near))
    other = PeerStream(far)
    seen: list[Any] = []

    def on_frame(kind: int, body: Any, size: int) -> None:
        seen.append(body)
        if body == 3:
            link.close("enough")

    for number in range(10):
        await other.send((1, number))
    await link.run(on_frame)
    assert seen == [0, 1, 2, 3] and link.why == "enough"


async def test_link_reads_nothing_while_its_queue_is_full(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    link = PeerLink(PEER, PeerStream(near))
    other = PeerStream(far)
    sizes: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, lambda kind, body, size: sizes.append(size), lambda: sum(sizes) < limit)
        limit = 250
        for _ in range(10):
            await other.send((1, bytes(97)))
        await trio.sleep(1)
        assert sizes == [101, 101, 101], "the sends that began below the limit"
        limit = 450
        await trio.sleep(1)
        assert sizes == [101] * 5
        limit = 1 << 20
        await trio.sleep(1)
        assert len(sizes) == 10
        link.close("enough")


async def test_a_fault_in_the_callback_comes_out() -> None:
    near, far = trio.testing.memory_stream_pair()
    await PeerStream(far).send((1, None))

    def on_frame(kind: int, body: Any, size: int) -> None:
        raise KeyError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(KeyError, match="a bug")):
        await PeerLink(PEER, PeerStream(near)).run(on_frame)
