"""The log of a single node stalls for a while. Messages that became due or were in flight meanwhile are delivered
afterwards, and all timed work of the partition continues."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.lowlevel

import sandq
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.storage.files import RealFiles
from tests.support.nodes.small_node import small_config
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import until_answer, until_holds


class Held:
    """A node whose disk syncs can be blocked."""

    def __init__(self, directory: Path) -> None:
        (directory / "data").mkdir()
        self._go_on = threading.Event()
        self._go_on.set()
        self.files = FaultyFiles(RealFiles(directory / "data"), Plan(on_sync=lambda name: self._wait()))
        self.config = small_config(directory, HEALTH__STALL_AFTER="1s")

    def _wait(self) -> None:
        self._go_on.wait()

    @asynccontextmanager
    async def stalled(self, client: sandq.Client) -> AsyncIterator[None]:
        """Stop the syncs until the `with` block ends. The block starts once the node reports that it is stalled."""
        self._go_on.clear()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, client)
                await until_answer(client.admin.cluster, lambda info: info["stalled"])
                yield
                self._go_on.set()
        finally:
            self._go_on.set()

    async def _write(self, client: sandq.Client) -> None:
        await client.produce("other", b"what hangs", delay="1h")


@asynccontextmanager
async def a_node(directory: Path) -> AsyncIterator[tuple[Held, Serving, sandq.Client]]:
    held = Held(directory)
    async with run_node(held.config, files=held.files) as node:
        address = f"{node.client_host}:{node.client_port}"
        async with sandq.connect(address) as client:
            await client.admin.create_topic("other")
            yield held, node, client


async def test_message_due_during_stall_is_delivered_after_it(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (held, _, client):
        await client.admin.create_topic("t")
        async with client.subscribe("t", group="g") as subscription:
            await client.produce("t", b"soon", delay="500ms")
            async with held.stalled(client):
                await trio.lowlevel.checkpoint()
            message = await subscription.__anext__()
            assert (message.value, message.attempt) == (b"soon", 1)
            await message.ack()


async def test_lease_in_flight_reaches_its_consumer(tmp_path: Path) -> None:
    """Otherwise the lease would expire and the message would die without a delivery."""
    async with a_node(tmp_path) as (held, _, client):
        await client.admin.create_topic("t", max_attempts=1, lease="12h")
        await client.produce("t", b"once", delay="300ms")
        async with client.subscribe("t", group="g") as subscription:
            async with held.stalled(client):
                await trio.lowlevel.checkpoint()
            message = await subscription.__anext__()
            assert (message.value, message.attempt) == (b"once", 1)
            await message.ack()


async def test_message_for_cancelled_lease_request_is_given_back(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (held, _, client):
        await client.admin.create_topic("t", lease="12h")
        await client.produce("t", b"once", delay="300ms")
        leases, asking = client.leases("t", "g"), trio.CancelScope()

        async def ask() -> None:
            with asking:
                await leases.take(1, wait="20s")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            async with held.stalled(client):
                asking.cancel()
        (message,) = await until_answer(lambda: leases.take(1, wait="1s"), lambda found: found)
        assert message.value == b"once"


async def test_upkeep_goes_on(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (held, node, client):
        await client.admin.create_topic("t")
        async with client.subscribe("t", group="g") as subscription:
            await client.produce("t", b"first")
            await (await subscription.__anext__()).ack()
            async with held.stalled(client):
                await trio.lowlevel.checkpoint()
            await client.produce("t", b"second")
            await (await subscription.__anext__()).ack()
            host = node.broker.catalog.partition("t", 0).raft_group
            await until_holds(lambda: host.status.messages == 0)
