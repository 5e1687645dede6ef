"""`client.run` works against a real node: with handlers longer than a lease, a drain, and a kill of the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

import sandq
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
LEASE_S = 10
"""Lease in seconds. The client extends it after a third of this time, which is longer than a loaded machine pauses."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


def test_handler_longer_than_lease_keeps_message(node: NodeProcess) -> None:
    """The lease is longer than the pauses of a loaded machine.

    Handlers that last several leases, and both backends, are tested in tests/unit/client/consumer/test_worker.py."""

    async def main() -> None:
        seen: list[tuple[bytes, int, bool]] = []
        done = anyio.Event()

        async def handler(message: sandq.Message) -> None:
            await anyio.sleep(LEASE_S + 0.5)
            seen.append((message.value, message.attempt, message.is_held))
            done.set()

        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", lease=f"{LEASE_S}s")
            await client.produce("t", b"long")
            async with anyio.create_task_group() as tasks:
                # Run two consumers, because the other consumer would receive a redelivered message.
                tasks.start_soon(client.run, "t", "g", handler)
                tasks.start_soon(client.run, "t", "g", handler)
                await done.wait()
                tasks.cancel_scope.cancel()
            (row,) = await client.admin.groups("t")
            assert (row["leased"], row["waiting"], row["ready"], row["dead"]) == (0, 0, 0, 0)
        assert seen == [(b"long", 1, True)]

    with_deadline(main, "trio")


@BACKENDS
def test_drain_leaves_unbegun_messages_to_others(node: NodeProcess, backend: str) -> None:
    async def main() -> None:
        go, begun = anyio.Event(), anyio.Event()
        ours: list[bytes] = []
        theirs: list[tuple[bytes, int]] = []

        async def slow(message: sandq.Message) -> None:
            ours.append(message.value)
            begun.set()
            await go.wait()

        async def quick(message: sandq.Message) -> None:
            theirs.append((message.value, message.attempt))
            if len(theirs) == 5:
                # the drain ends only when others have received all messages that were not begun, and the new one
                go.set()

        async with sandq.connect(node.address, timeout=PATIENCE_S) as client, anyio.create_task_group() as others:
            await client.admin.create_topic("t")
            async with client.producer("t") as producer:
                await producer.send_many([b"%d" % number for number in range(5)])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(client.run, "t", "g", slow, concurrency=1, credit=10))
                await begun.wait()
                others.start_soon(client.run, "t", "g", quick)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await client.produce("t", b"new")
            others.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                (row,) = await client.admin.groups("t")
                assert (row["leased"], row["waiting"], row["ready"]) == (0, 0, 0)
        assert len(ours) == 1
        assert {value for value, _ in theirs} == {b"0", b"1", b"2", b"3", b"4", b"new"} - set(ours)
        assert {attempt for _, attempt in theirs} == {1}, "a message that was not begun uses no attempt"

    with_deadline(main, backend)


@BACKENDS
def test_run_across_node_kill_handles_each_message_once(node: NodeProcess, backend: str) -> None:
    async def main() -> None:
        seen: Counter[bytes] = Counter()
        working = anyio.Event()
        killed, all_seen = anyio.Event(), anyio.Event()

        async def handler(message: sandq.Message) -> None:
            seen[message.value] += 1
            if len(seen) == 5:
                working.set()
            if len(seen) == 20:
                all_seen.set()
            if not killed.is_set():
                await killed.wait()

        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", lease="10m")
            async with client.producer("t") as producer:
                await producer.send_many([b"%d" % number for number in range(20)])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(client.run, "t", "g", handler, concurrency=5))
                await working.wait()
                node.kill()
                killed.set()
                await anyio.to_thread.run_sync(node.start)
                await all_seen.wait()
                tasks.cancel_scope.cancel()
            (row,) = await client.admin.groups("t")
            assert (row["leased"], row["waiting"], row["ready"]) == (0, 0, 0), "all were acked"
        assert set(seen.values()) == {1}, "leases outlive the node, so no message is handled twice"

    with_deadline(main, backend)


def with_deadline(main: Callable[[], Awaitable[None]], backend: str) -> None:
    async def bounded() -> None:
        with anyio.fail_after(PATIENCE_S):
            await main()

    anyio.run(bounded, backend=backend)
