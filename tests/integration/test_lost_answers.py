"""A proxy cuts connections, so that replies to PRODUCE are lost: every message is stored once and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import sandq
from sandq.errors import DuplicateKey
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.proxy import Proxy, proxy_to
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def through(node: Serving) -> AsyncIterator[tuple[Proxy, sandq.Client]]:
    """A proxy before the node, and a client behind it."""
    async with proxy_to(node.client_port) as proxy, sandq.connect(f"127.0.0.1:{proxy.port}") as client:
        await client.admin.create_topic("t")
        yield proxy, client


async def stored(client: sandq.Client) -> list[tuple[str, bytes]]:
    """Return (id, value) of all stored messages, in log order."""
    return [(message.id, message.value or b"") async for message in client.messages("t").list(values=True)]


@pytest.mark.parametrize("lost", [[0], [1, 2, 5, 8]], ids=str)
@pytest.mark.parametrize("what", ["answer", "request"])
async def test_messages_of_producer_are_stored_once(node: Serving, lost: list[int], what: str) -> None:
    async with through(node) as (proxy, client):
        setattr(proxy, f"cut_{what}", lost.__contains__)
        async with client.producer("t", linger=0) as producer:
            receipts = []
            for number in range(40):
                receipts.append(await producer.send(b"%d" % number))
                if number % 4 == 3:
                    await producer.flush()
            ids = [await receipt for receipt in receipts]
        assert await stored(client) == [(ids[number], b"%d" % number) for number in range(40)]
        assert proxy.requests > 10 and proxy.answers > len(lost), "some batches must have been lost in transit"


async def test_batches_in_flight_are_stored_once(node: Serving) -> None:
    async with through(node) as (proxy, client):
        proxy.cut_answer = lambda n: n % 7 == 3
        async with client.producer("t") as producer:
            ids = await (await producer.send_many([b"%d" % number for number in range(10_000)]))
        assert await stored(client) == [(ids[number], b"%d" % number) for number in range(10_000)]


async def test_a_single_message_is_stored_once(node: Serving) -> None:
    async with through(node) as (proxy, client):
        proxy.cut_answer = lambda n: n < 3
        first = await client.produce("t", b"one")
        proxy.cut_request = lambda n: n == 4
        second = await client.produce("t", b"two", delay="1h")
        assert await stored(client) == [(first, b"one"), (second, b"two")]
        assert proxy.answers == 5


async def test_a_conflict_is_answered_as_the_first_time(node: Serving) -> None:
    async with through(node) as (proxy, client):
        proxy.cut_answer = lambda n: n in (0, 2)
        first = await client.produce("t", b"one", unique_key="u", delay="1h")
        with pytest.raises(DuplicateKey) as refused:
            await client.produce("t", b"two", unique_key="u", delay="1h")
        assert refused.value.details == {"id": first, "state": "delayed"}
        assert await stored(client) == [(first, b"one")]


class Life:
    """One life of a node, from its start to `end`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._end, self._ended = trio.Event(), trio.Event()

    async def run(self, task_status: trio.TaskStatus[Serving]) -> None:
        async with run_node(small_config(self._directory)) as node:
            task_status.started(node)
            await self._end.wait()
        self._ended.set()

    async def end(self) -> None:
        self._end.set()
        await self._ended.wait()


async def test_a_node_that_starts_again_remembers(tmp_path: Path) -> None:
    first, second = Life(tmp_path), Life(tmp_path)
    async with trio.open_nursery() as nursery:
        async with through(await nursery.start(first.run)) as (proxy, client):
            before = await client.produce("t", b"before")
            proxy.cut_answer = lambda n: True
            async with client.producer("t") as producer:
                receipts = await producer.send_many([b"a", b"b"])
                with trio.fail_after(PATIENCE_S):
                    await proxy.lost.wait()  # the batch is stored, and the client does not know it
                await first.end()
                proxy.cut_answer = lambda n: False
                proxy.target = (await nursery.start(second.run)).client_port
                ids = await receipts
            assert await stored(client) == [(before, b"before"), (ids[0], b"a"), (ids[1], b"b")]
        await second.end()
