"""A node of the cluster sends nonsense or incomplete data: the others continue."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.peers.links import STREAMS_MOST, PeerLinks
from sandq.broker.peers.stream import FRAME_BYTES, LENGTH, PeerStream
from sandq.broker.snapshots.transfer import SMALL_FRAME_BYTES
from sandq.model.errors import ConnectionLost
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.simulation.seeds import few_of
from tests.support.waiting import until_holds

PLAIN = (0, 1, -1, 5, 2**31, 2**63, 2**64 - 1, 1.5, None, True, False, "", "node1", "asks", b"", b"x" * 40, "x" * 5000)
FRAMES = 400
AT_ONCE = 20


def links_of(nodes: ThreeNodes, name: str) -> PeerLinks:
    links: PeerLinks = nodes.running[name].broker.links
    return links


@asynccontextmanager
async def produced_meanwhile(nodes: ThreeNodes) -> AsyncIterator[None]:
    """Produce one message after the other; at the end, all acknowledged ones are stored."""
    taken: set[bytes] = set()

    async def produce() -> None:
        while True:
            value = b"%d" % len(taken)
            await client.produce("t", value)
            taken.add(value)

    async with nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await nodes.until_led()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            yield
            before = len(taken)
            await until_holds(lambda: len(taken) > before)  # the producer still works
            nursery.cancel_scope.cancel()
        await client.produce("t", b"last")
        found: set[bytes] = set()
        async with client.subscribe("t", group="g", credit=1000) as subscription:
            async for message in subscription:
                found.add(message.value)
                await message.ack()
                if message.value == b"last":
                    break
        assert taken <= found
    assert {*nodes.running} == {"node1", "node2", "node3"}


def body_of(rng: random.Random, depth: int = 0) -> Any:
    if depth < 4 and rng.random() < 0.6:
        parts = [body_of(rng, depth + 1) for _ in range(rng.randrange(6))]
        return {str(at): part for at, part in enumerate(parts)} if rng.random() < 0.1 else parts
    return rng.choice(PLAIN)


def deep(rng: random.Random) -> Any:
    nested: Any = rng.choice(PLAIN)
    for _ in range(rng.choice((20, 300))):
        nested = [nested]
    return nested


@pytest.mark.parametrize("seed", few_of(range(30), 1))
async def test_frames_that_make_no_sense_from_a_proved_peer(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await nodes.until_led()
        await client.produce("t", b"before")
        links = links_of(nodes, "node1")
        others = ("node2", "node3")
        for at in range(FRAMES):
            kind = rng.choice([*PeerFrame, rng.randrange(1, 256)])
            body = deep(rng) if rng.random() < 0.05 else body_of(rng)
            to = rng.choice(others)
            if not links.send(to, kind, body):
                await until_holds(lambda: {*others} <= {*links.up})  # the link was closed and will be opened again
            if at % AT_ONCE == 0:
                await wait_all_tasks_blocked()  # the sent frames have been received and handled
        await until_holds(lambda: {*others} <= {*links.up})
        await nodes.until_led()
        await client.produce("t", b"after")
        assert {*nodes.running} == {"node1", "node2", "node3"}, f"seed {seed}"


# Damage the link's data where the receiver can see it: only TCP checks bytes inside of a frame.
Send = Callable[[bytes], Awaitable[None]]


async def _too_long(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(LENGTH.pack(FRAME_BYTES + 1) + data)


async def _empty(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(LENGTH.pack(0) + data)


async def _no_msgpack(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(LENGTH.pack(5) + b"\xc1" * 5 + data)


async def _no_frame(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(LENGTH.pack(1) + b"\x07" + data)


async def _half(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(data[: len(data) // 2])
    await stream.aclose()


async def _noise(stream: PeerStream, send: Send, data: bytes) -> None:
    await send(b"\xff" + random.Random(len(data)).randbytes(5000))


DAMAGES = (_too_long, _empty, _no_msgpack, _no_frame, _half, _noise)


async def test_damaged_bytes_from_a_proved_peer(tmp_path: Path) -> None:
    """The receivers close the link, and it is opened again."""
    async with three_nodes(tmp_path) as nodes, produced_meanwhile(nodes):
        links = links_of(nodes, "node1")
        for at, damage in enumerate(DAMAGES):
            to = ("node2", "node3")[at % 2]
            await until_holds(lambda to=to: to in links.up)
            link = links._links[to]
            stream = link._stream
            send = stream.send_bytes

            async def damaged(
                data: bytes, damage: Any = damage, stream: PeerStream = stream, send: Send = send
            ) -> None:
                stream.send_bytes = send  # type: ignore[method-assign]
                await damage(stream, send, data)

            stream.send_bytes = damaged  # type: ignore[method-assign]
            await until_holds(lambda to=to, link=link: links._links.get(to) not in (link, None))
        await until_holds(lambda: {"node2", "node3"} <= {*links.up})


async def test_streams_that_say_half_or_too_much_from_a_proved_peer(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, produced_meanwhile(nodes):
        links, theirs = links_of(nodes, "node1"), links_of(nodes, "node2")
        for data in (
            LENGTH.pack(SMALL_FRAME_BYTES + 1) + bytes(1000),
            LENGTH.pack(FRAME_BYTES) + bytes(1 << 20),
            LENGTH.pack(0),
            LENGTH.pack(3) + b"\xc1\xc1\xc1",
            LENGTH.pack(3) + b"\x92\x01\xc0",
        ):
            async with links.open_stream("node2") as stream:
                try:
                    await stream.send_bytes(data)
                    await stream.receive()
                except ConnectionLost:  # the link is closed although more bytes were announced
                    continue
                raise AssertionError(f"{data[:8]!r} is taken")
        async with AsyncExitStack() as stack:
            for _ in range(STREAMS_MOST):
                stream = await stack.enter_async_context(links.open_stream("node2"))
                await stream.send_bytes(LENGTH.pack(SMALL_FRAME_BYTES) + bytes(SMALL_FRAME_BYTES // 2))
            await until_holds(lambda: theirs._streams == STREAMS_MOST)
            async with links.open_stream("node2") as one_more:
                with pytest.raises(ConnectionLost):
                    await one_more.receive()
        await until_holds(lambda: theirs._streams == 0)
