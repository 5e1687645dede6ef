"""Clusters that change while messages come and go: a node more, and nodes that are started anew. What producers and
consumers notice of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

import sandq
from benchmarks.cluster import NODES, Cluster, cluster
from benchmarks.process import Where
from benchmarks.produce import TOPIC
from benchmarks.result import Goal, Result
from demo.node import Node
from sandq.errors import SandqError

JOIN = Goal(30.0, "s", at_least=False)
PAUSE = Goal(3.0, "s", at_least=False)
PATIENCE_S = 300.0
EVERY_S = 0.005
"""A message is sent so often, whatever becomes of those before."""
STEADY_S = 3.0
VALUE = b"x" * 100
SETTINGS: dict[str, Any] = {"lease": "5s", "max_attempts": None}


@dataclass
class Noticed:
    """Seconds that each message took to be acknowledged, and to come to a consumer that waits for it."""

    produced_s: list[float] = field(default_factory=list)
    delivered_s: list[float] = field(default_factory=list)
    errors: int = 0

    def record(self, result: Result) -> None:
        for name, taken in (("produce", self.produced_s), ("delivery", self.delivered_s)):
            result.details[f"{name} p50 ms"] = at(taken, 0.5) * 1000
            result.details[f"{name} p99 s"] = at(taken, 0.99)
            result.details[f"{name} longest s"] = max(taken)
        result.details["errors"] = self.errors


def at(taken: list[float], share: float) -> float:
    return sorted(taken)[min(len(taken) - 1, int(len(taken) * share))]


@asynccontextmanager
async def noticed(client: sandq.Client, topic: str) -> AsyncIterator[Noticed]:
    """Produce to a topic and consume it while the block runs."""
    found = Noticed()
    sent: dict[bytes, float] = {}

    async def settle(began_s: float, receipt: sandq.Receipt) -> None:
        try:
            await receipt
        except SandqError:
            found.errors += 1
        found.produced_s.append(time.perf_counter() - began_s)

    async def produce(settling: anyio.abc.TaskGroup) -> None:
        number, next_s = 0, time.perf_counter()
        async with client.producer(topic) as producer:
            while not stop.is_set():
                value = b"%09d" % number + VALUE
                # From when it was to be sent: what waits for room is late, too.
                sent[value] = next_s
                settling.start_soon(settle, next_s, await producer.send(value))
                number, next_s = number + 1, next_s + EVERY_S
                await anyio.sleep(max(0.0, next_s - time.perf_counter()))

    async def consume() -> None:
        async with client.subscribe(topic, group="bench", credit=1000) as subscription:
            async for message in subscription:
                began = sent.pop(message.value or b"", None)
                if began is not None:
                    found.delivered_s.append(time.perf_counter() - began)
                message.ack()

    stop = anyio.Event()
    async with anyio.create_task_group() as consuming:
        consuming.start_soon(consume)
        async with anyio.create_task_group() as producing:
            producing.start_soon(produce, producing)
            await anyio.sleep(STEADY_S)
            yield found
            await anyio.sleep(STEADY_S)
            stop.set()
        consuming.cancel_scope.cancel()


async def _until(ask: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                if await ask():
                    return
            except SandqError:
                pass  # nobody leads the metadata just now
            await anyio.sleep(0.05)


async def _until_serves(node: Node) -> None:
    async def serves() -> bool:
        return node.serves()

    await _until(serves)


async def _until_up(client: sandq.Client, count: int) -> None:
    async def are_up() -> bool:
        return sum(bool(row["up"]) for row in (await client.admin.cluster())["nodes"]) == count

    await _until(are_up)


def join(where: Where, quick: bool) -> Result:
    """A fourth node comes, until it holds its share."""
    partitions, each = (8, 20) if quick else (60, 1000)
    with cluster(where) as nodes:
        seconds, found, used_s = anyio.run(partial(_join, nodes, partitions, each), backend="trio")
    what = f"a 4th node: until it holds its share of {partitions} partitions (3 replicas) of {each} messages each"
    result = Result("cluster_moves", what, "client", len(found.produced_s), seconds, JOIN.unit, JOIN)
    found.record(result)
    result.details["CPU of all nodes s"] = used_s
    return result


async def _join(nodes: Cluster, partitions: int, each: int) -> tuple[float, Noticed, float]:
    async with sandq.connect(*nodes.addresses) as client:
        await _until_up(client, NODES)
        await client.admin.create_topic(TOPIC, partitions=partitions, replicas=NODES)
        await client.admin.create_topic("live", partitions=6, replicas=NODES, **SETTINGS)
        async with client.producer(TOPIC) as producer:
            for _ in range(partitions * each):
                await producer.send(VALUE)
        share = partitions * NODES // (NODES + 1)

        async def has_its_share() -> bool:
            placed = (await client.admin.topic(TOPIC)).partitions
            held = sum("node4" in row.nodes for row in placed)
            return abs(held - share) <= 2 and not any(row.moving for row in placed)

        async with noticed(client, "live") as found:
            node = nodes.add("node4")
            before_s, began = nodes.cpu_s(), time.perf_counter()
            node.start()
            await _until(has_its_share)
            seconds = time.perf_counter() - began
            used_s = nodes.cpu_s() - before_s
        return seconds, found, used_s


def rolling(where: Where, quick: bool) -> Result:
    """SIGTERM to each node in turn, and its start."""
    rounds = 1 if quick else 3
    with cluster(where) as nodes:
        found = anyio.run(partial(_roll, nodes, rounds), backend="trio")
    what = f"{NODES} nodes ended and started, one after the other, {rounds} times: 99 % of all messages acknowledged in"
    value = at(found.produced_s, 0.99)
    result = Result("cluster_rolling", what, "client", len(found.produced_s), value, PAUSE.unit, PAUSE)
    found.record(result)
    return result


async def _roll(nodes: Cluster, rounds: int) -> Noticed:
    async with sandq.connect(*nodes.addresses) as client:
        await _until_up(client, NODES)
        await client.admin.create_topic("live", partitions=6, replicas=NODES, **SETTINGS)
        async with noticed(client, "live") as found:
            for node in list(nodes.nodes.values()) * rounds:
                await anyio.to_thread.run_sync(node.stop)
                node.start()  # on this thread: it ends with it
                await _until_serves(node)
                await _until_up(client, NODES)
        return found
