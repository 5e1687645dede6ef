"""Measure how producers and consumers are affected when a node is added, and when nodes restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

import sandq
from benchmarks.cluster import NODES, Cluster, cluster
from benchmarks.driver import Load
from benchmarks.produce import TOPIC
from benchmarks.result import Goal, LoadResult, Measured, Row, Setting
from demo.node import Node
from sandq.errors import SandqError

JOIN = Goal(30.0, "s", at_least=False)
PAUSE = Goal(3.0, "s", at_least=False)
PATIENCE_S = 300.0
STEADY_S = 3.0
LIVE = "live"
PARTITIONS = 60
EACH = 1000
VALUE = b"x" * 100
SETTINGS: dict[str, Any] = {"lease": "5s", "max_attempts": None}


@asynccontextmanager
async def noticed(nodes: Cluster) -> AsyncIterator[list[LoadResult]]:
    """Produce to a topic and consume it in another process while the block runs. The process reports at the end."""
    found: list[LoadResult] = []
    with Load("client_notice", addresses=nodes.addresses, topic=LIVE) as load:
        load.ready()
        load.go()
        await anyio.sleep(STEADY_S)
        yield found
        await anyio.sleep(STEADY_S)
        load.stop()
        found.append(load.result())


async def _until(ask: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                if await ask():
                    return
            except SandqError:
                pass  # the metadata group has no leader at the moment
            await anyio.sleep(0.05)


async def _until_serves(node: Node) -> None:
    async def serves() -> bool:
        return node.serves()

    await _until(serves)


async def _until_up(client: sandq.Client, count: int) -> None:
    async def are_up() -> bool:
        return sum(bool(row["up"]) for row in (await client.admin.cluster())["nodes"]) == count

    await _until(are_up)


def join(setting: Setting) -> Measured:
    """Add a fourth node, and wait until it holds its share."""
    partitions, each = setting.count(PARTITIONS, 8), setting.count(EACH, 20)
    with cluster(setting) as nodes:
        seconds, result, used_s = anyio.run(partial(_join, nodes, partitions, each), backend="trio")
    measured = _measured(result, seconds)
    measured.details["CPU of all nodes s"] = used_s
    return measured


async def _join(nodes: Cluster, partitions: int, each: int) -> tuple[float, LoadResult, float]:
    async with sandq.connect(*nodes.addresses) as client:
        await _until_up(client, NODES)
        await client.admin.create_topic(TOPIC, partitions=partitions, replicas=NODES)
        await client.admin.create_topic(LIVE, partitions=6, replicas=NODES, **SETTINGS)
        async with client.producer(TOPIC) as producer:
            for _ in range(partitions * each):
                await producer.send(VALUE)
        share = partitions * NODES // (NODES + 1)

        async def has_its_share() -> bool:
            placed = (await client.admin.topic(TOPIC)).partitions
            held = sum("node4" in row.nodes for row in placed)
            return abs(held - share) <= 2 and not any(row.moving for row in placed)

        async with noticed(nodes) as result:
            node = nodes.add("node4")
            before_s, began_s = nodes.cpu_s(), anyio.current_time()
            node.start()
            await _until(has_its_share)
            seconds = anyio.current_time() - began_s
            used_s = nodes.cpu_s() - before_s
        return seconds, result[0], used_s


def rolling(setting: Setting) -> Measured:
    """Send SIGTERM to each node in turn, and start it again."""
    with cluster(setting) as nodes:
        result = anyio.run(partial(_roll, nodes, setting.count(3, 1)), backend="trio")
    assert result.latency is not None
    return _measured(result, result.latency.at(0.99) / 1000)


async def _roll(nodes: Cluster, rounds: int) -> LoadResult:
    async with sandq.connect(*nodes.addresses) as client:
        await _until_up(client, NODES)
        await client.admin.create_topic(LIVE, partitions=6, replicas=NODES, **SETTINGS)
        async with noticed(nodes) as result:
            for node in list(nodes.nodes.values()) * rounds:
                await anyio.to_thread.run_sync(node.stop)
                node.start()  # on this thread, because the node ends with the thread that starts it
                await _until_serves(node)
                await _until_up(client, NODES)
        return result[0]


def _measured(result: LoadResult, value: float) -> Measured:
    client_cpu_us = result.cpu_s * 1e6 / result.messages
    return Measured(
        result.messages, value, client_cpu_us=client_cpu_us, latency=result.latency, errors=result.errors,
        details=result.details,
    )  # fmt: skip


ROWS = (
    Row(
        "cluster_moves",
        "replicas",
        f"a 4th node: until it holds its share of {PARTITIONS} partitions (3 replicas) of {EACH} messages each",
        join,
        "s",
        JOIN,
        "client",
    ),
    Row(
        "cluster_rolling",
        "replicas",
        f"{NODES} nodes ended and started, one after the other, 3 times: 99 % of all messages acknowledged in",
        rolling,
        "s",
        PAUSE,
        "client",
    ),
)
