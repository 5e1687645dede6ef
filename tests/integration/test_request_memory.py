"""The memory of a request and its response is freed with the reply. Nothing large waits for Python's cycle collector,
which runs rarely."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S

SIZE = 200_000
"""Minimum size of each request, in bytes. After all requests and connections, less than this may remain."""
SHARED = (type, asyncio.AbstractEventLoop)
"""Shared objects, which do not count as memory of a request."""
ASKED = 5
"""Number of times that each request is sent."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as serving:
        yield serving


@contextmanager
def kept() -> Iterator[list[Any]]:
    """Return the objects created in the block that only the collector would free."""
    gc.collect()
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def size_of(found: list[Any]) -> int:
    """Return the size of these objects in bytes, with their attributes."""
    every = {id(one): one for whole in found for one in (whole, *gc.get_referents(whole))}
    return sum(sys.getsizeof(one) for one in every.values() if not isinstance(one, SHARED) and one is not sys.modules)


def test_reference_cycle_is_detected_by_this_test() -> None:
    def refuse(body: bytes) -> None:
        try:
            raise ValueError(len(body))
        except ValueError as error:
            failure = error
        str(failure)  # the exception keeps its frame, which keeps the body

    with kept() as found:
        refuse(bytes(SIZE))
    assert size_of(found) > SIZE


Ask = Callable[[], Awaitable[str]]
"""Send one request; return the response: a status, or a code."""


async def check_repeated_requests(node: Serving, ask: Ask, answer: str) -> None:
    assert [await ask() for _ in range(2)] == [answer] * 2  # warm up: create everything that is created once
    await trio.testing.wait_all_tasks_blocked()
    with kept() as found:
        assert [await ask() for _ in range(ASKED)] == [answer] * ASKED
        await trio.testing.wait_all_tasks_blocked()  # tasks that replied have ended
    assert size_of(found) < SIZE, [type(one).__name__ for one in found[:50]]


def many(item: str, times: int) -> str:
    return '{"messages":[' + ",".join([item] * times) + "]}"


def members(times: int) -> str:
    return "{" + ",".join(f'"k{number}":0' for number in range(times)) + "}"


TAKEN = '{"messages":[' + ",".join(f'{{"unique_key":"u{n:0150}","delay":"1h","text":"x"}}' for n in range(1000)) + "]}"
"""The first call stores an object once. Later calls leave nothing."""
BODIES = {
    "stored": ("/topics/t", many('{"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', 5000), "201"),
    "of a name twice": ("/topics", members(9000)[:-1] + ',"z":0,"z":0' + " " * SIZE + "}", "400"),
    "no JSON": ("/topics/t", '{"text":"' + "x" * SIZE, "400"),
    "of names that are not known": ("/topics/t", members(9900) + " " * SIZE, "400"),
    "of messages that are none": ("/topics/t", many(members(20), 1000), "400"),
    "of other types": ("/topics/t", '{"json":1,"text":' + "9" * 30 + ',"key":"' + "k" * SIZE + '"}', "400"),
    "nested too deep": ("/topics/t", '{"json":' + "[" * 40_000 + " " * SIZE, "400"),
    "of too many parts": ("/topics/t", '{"json":[' + ",".join(["[]"] * 60_000) + "]}", "413"),
    "each refused": ("/topics/t", TAKEN, "409"),
    "all but one refused": ("/topics/t", TAKEN.replace("]}", ',{"text":"new"}]}'), "207"),
    "for no topic": ("/topics/none", many('{"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', 5000), "404"),
    "for no route": ("/nowhere/at/all", "x" * SIZE, "404"),
    "small, and wrong": ("/topics/t", '{"json":' + "9" * 50_000 + "}", "400"),
}


@pytest.mark.parametrize("what", BODIES)
async def test_bodies(node: Serving, dial: Dial, what: str) -> None:
    path, body, answer = BODIES[what]
    assert (await (await dial(node)).create())[0] == Type.REPLY
    assert node.http is not None
    port = node.http[1]
    data = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    sent = data.encode()
    del data

    async def ask() -> str:
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(sent)
                answered = b"".join([piece async for piece in stream])
        return answered.split()[1].decode()

    if "u0" in body:
        assert await ask() == "201"
    await check_repeated_requests(node, ask, answer)


MESSAGES = encode({Column.VALUE: [bytes(1000)] * (SIZE // 1000 + 1)})
KEYS = [b"%0200d" % number for number in range(1000)]
REQUESTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "stored": ("0", (Type.PRODUCE, "t", 0, 0, 0, 0, 0, MESSAGES)),
    "for no topic": ("UNKNOWN_TOPIC", (Type.PRODUCE, "none", 0, 0, 0, 0, 0, MESSAGES)),
    "for no partition": ("UNKNOWN_PARTITION", (Type.PRODUCE, "t", 9, 0, 0, 0, 0, MESSAGES)),
    "no batch": ("INVALID", (Type.PRODUCE, "t", 0, 0, 0, 0, 0, bytes(SIZE))),
    "of another type": ("INVALID", (Type.PRODUCE, "t", "0", 0, 0, 0, 0, MESSAGES)),
    "keys, of a topic without": ("INVALID", (Type.KV_GET, "t", 0, False, KEYS)),
    "a schedule without a time": (
        "INVALID",
        (Type.SCHEDULE_PUT, "t", 0, [["s", None, {"cron": "x", "zone": "UTC"}, MESSAGES, False]]),
    ),
    "a type that there is not": ("INVALID", (77, bytes(SIZE))),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_requests(node: Serving, dial: Dial, what: str) -> None:
    answer, request = REQUESTS[what]
    client: RawClient = await dial(node)
    assert (await client.create())[0] == Type.REPLY

    async def ask() -> str:
        frame = await client.call(*request)
        return str(frame[2] if frame[0] == Type.ERROR else frame[0])

    await check_repeated_requests(node, ask, answer)
