from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio

import sandq
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected
from tests.support.stopped_time import loop_clock, node_time

__all__ = ["loop_clock", "node_time"]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    """Run a node on a free port, in this process."""
    async with run_node(small_config(tmp_path)) as serving:
        yield serving


@pytest.fixture
async def api(node: Serving) -> AsyncIterator[sandq.Client]:
    """A Python client that is connected to the node."""
    async with connected(node) as client:
        yield client


@pytest.fixture
def hand(node_time: None) -> HandClock:
    return HandClock()


@pytest.fixture
async def timed(tmp_path: Path, hand: HandClock) -> AsyncIterator[Serving]:
    """A node whose clock is moved by `hand`."""
    async with run_node(small_config(tmp_path), clock=hand.guarded()) as serving:
        yield serving


Dial = Callable[..., Awaitable[RawClient]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """`await dial(serving)`: a connection that ends with the test."""
    made: list[RawClient] = []

    async def connect(to: Serving, *, hello: bool = True) -> RawClient:
        made.append(await RawClient.connect(to.client_port, hello=hello))
        return made[-1]

    yield connect
    for raw in made:
        await trio.aclose_forcefully(raw.stream)


@pytest.fixture
async def client(node: Serving, dial: Dial) -> RawClient:
    return await dial(node)
