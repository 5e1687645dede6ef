"""Three nodes, three replicas: what an acknowledgement costs that is on the disks of a majority."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

import demo.cluster
import sandq
from benchmarks.process import PROFILED, Where, cpu_s
from benchmarks.produce import TOPIC, batch_of, frames_of
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from demo.node import PROGRAM, free_port
from sandq.model.batch import Column, encode

NODES = 3
START_S = 30.0
BATCHED = Goal(200_000, "msg/s")
ENTRIES = Goal(60_000, "entries/s")
"""Of Raft alone; through the whole broker each is a message of its own."""
LARGE = Goal(100, "MB/s")
COMMIT = Goal(2.0, "ms", at_least=False)
IDLE = Goal(6.0, "% of a core a node", at_least=False)
FAILOVER = Goal(3.0, "s", at_least=False)
LARGE_BYTES = 100_000


class Cluster(demo.cluster.Cluster):
    """Processes of three nodes that have formed a cluster, and what they take."""

    def cpu_s(self) -> float:
        """Of all nodes that run."""
        return sum(cpu_s(node.pid) for node in self.nodes.values() if node.pid is not None)

    def form(self, topic: str = TOPIC, partitions: int = 1) -> list[str]:
        """Make a topic of three replicas once all nodes are registered; the node that leads each partition."""

        async def run() -> list[str]:
            async with sandq.connect(*self.addresses) as client:
                await _until_up(client)
                await client.admin.create_topic(topic, partitions=partitions, replicas=NODES)
                return [str(row.leader) for row in (await client.admin.topic(topic)).partitions]

        return anyio.run(run, backend="trio")


@contextlib.contextmanager
def cluster(where: Where, **settings: str) -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="sandq-bench-", dir=where.directory))
    if where.profiles is not None:
        os.environ["BENCHMARKS_PROFILE"] = str(where.profiles.resolve() / "cluster")
    made = Cluster(directory, program=PROFILED if where.profiles is not None else PROGRAM)
    for node in made.nodes.values():
        node.configure(**settings)
    try:
        for node in made.nodes.values():
            node.start()
        for node in made.nodes.values():
            node.wait_until_it_serves()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _produce(
    name: str, what: str, goal: Goal, where: Where, batch: bytes, size: int, partitions: int, window: int, count: int,
    **settings: str,
) -> Result:  # fmt: skip
    """`count` batches of `size` messages into each partition, over a connection to its leader."""
    with cluster(where, **settings) as nodes:
        leaders = nodes.form(partitions=partitions)
        wires = [Wire(nodes.nodes[leader].port) for leader in leaders]
        for at, wire in enumerate(wires):
            drive([Flow(wire, frames_of([batch], at), 1)])
        flows = [Flow(wire, frames_of([batch] * count, at), window) for at, wire in enumerate(wires)]
        before_s = nodes.cpu_s()
        driven = drive(flows)
        used_s = nodes.cpu_s() - before_s
        for wire in wires:
            wire.close()
    messages = size * count * partitions
    result = Result(name, what, "raw", messages, messages / driven.seconds, goal.unit, goal)
    result.cpu_us = used_s * 1e6 / messages
    if driven.answer_s:
        ordered = sorted(driven.answer_s)
        result.details = {
            "answer p50 ms": ordered[len(ordered) // 2] * 1000,
            "answer p99 ms": ordered[len(ordered) * 99 // 100] * 1000,
        }
    return result


def batched(where: Where, quick: bool) -> Result:
    """The whole broker, three replicas."""
    what = "3 replicas, 6 partitions, batches of 1000 x 100 B, 4 on the way to each"
    return _produce("cluster_1000", what, BATCHED, where, batch_of(1000), 1000, 6, 4, 10 if quick else 250)


def entries(where: Where, quick: bool) -> Result:
    """As many Raft entries as messages: nothing is merged."""
    what = "3 replicas, one group, an entry of 100 B for each message, 2000 on the way"
    count = 2000 if quick else 60_000
    settings = {"LIMITS__ENTRY_MESSAGES": "1"}
    return _produce("cluster_entries", what, ENTRIES, where, batch_of(1), 1, 1, 2000, count, **settings)


def raft(where: Where, quick: bool) -> Result:
    """The part of it that replication itself takes: no clients, no state machines."""
    count = 5000 if quick else 200_000
    directory = Path(tempfile.mkdtemp(prefix="sandq-bench-", dir=where.directory))
    ports = [f"node{at}={free_port()}" for at in range(NODES)]
    nodes: list[subprocess.Popen[str]] = []
    try:
        for at in range(NODES):
            own = directory / str(at)
            own.mkdir()
            arguments = [str(own), str(count), *ports[at:], *ports[:at]]
            command = [sys.executable, "-m", "benchmarks.raft_node", *arguments]
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        leader = nodes[0].stdout
        assert leader is not None
        assert leader.readline() == "begun\n"
        before_s = sum(cpu_s(node.pid) for node in nodes)
        seconds = float(leader.readline())
        used_s = sum(cpu_s(node.pid) for node in nodes) - before_s
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        shutil.rmtree(directory, ignore_errors=True)
    what = "Raft alone: 3 members, one group, entries of 100 B, 4000 on the way"
    result = Result("raft_entries", what, "none", count, count / seconds, ENTRIES.unit, ENTRIES)
    result.cpu_us = used_s * 1e6 / count
    return result


def large(where: Where, quick: bool) -> Result:
    """Bytes through one group."""
    batch = encode({Column.VALUE: [b"x" * LARGE_BYTES]})
    what = "3 replicas, one group, an entry of 100 KB for each message, 64 on the way"
    settings = {"LIMITS__ENTRY_MESSAGES": "1"}
    goal = Goal(LARGE.value * 1e6 / LARGE_BYTES, "msg/s")
    result = _produce("cluster_100KB", what, goal, where, batch, 1, 1, 64, 100 if quick else 5000, **settings)
    result.value, result.unit, result.goal = result.value * LARGE_BYTES / 1e6, LARGE.unit, LARGE
    return result


def commit(where: Where, quick: bool) -> Result:
    """One message after the other."""
    what = "3 replicas, one message on the way: its answer"
    result = _produce("cluster_commit", what, COMMIT, where, batch_of(1), 1, 1, 1, 100 if quick else 3000)
    result.value, result.unit = result.details["answer p50 ms"], COMMIT.unit
    return result


def idle(where: Where, quick: bool) -> Result:
    """Groups in which nothing happens."""
    groups, seconds = (30, 2.0) if quick else (300, 10.0)
    with cluster(where) as nodes:
        nodes.form(partitions=groups)
        time.sleep(2.0)
        before_s = nodes.cpu_s()
        time.sleep(seconds)
        used = (nodes.cpu_s() - before_s) / seconds / NODES * 100
    what = f"3 replicas, {groups} groups in which nothing happens: CPU of a node"
    return Result("cluster_idle", what, "raw", groups, used, IDLE.unit, IDLE)


def failover(where: Where, quick: bool) -> Result:
    """kill -9 of the node that leads, until the next message is acknowledged."""
    times = 1 if quick else 12
    taken: list[float] = []
    with cluster(where) as nodes:
        nodes.form()
        for _ in range(times):
            taken.append(anyio.run(partial(_kill_leader, nodes), backend="trio"))
    ordered = sorted(taken)
    what = f"kill -9 of the leader to the next acknowledged message, {times} times: the slowest"
    result = Result("cluster_failover", what, "client", times, ordered[-1], FAILOVER.unit, FAILOVER)
    result.details = {"p50 s": ordered[len(ordered) // 2]}
    return result


async def _kill_leader(nodes: Cluster) -> float:
    async with sandq.connect(*nodes.addresses) as client:
        await client.produce(TOPIC, b"before")
        leader = (await client.admin.topic(TOPIC)).partitions[0].leader
        node = nodes.nodes[str(leader)]
        node.kill()
        began = time.perf_counter()
        await client.produce(TOPIC, b"after")
        seconds = time.perf_counter() - began
        node.start()
        await _until_up(client)
        return seconds


async def _until_up(client: sandq.Client) -> None:
    """Until all nodes are registered and there."""
    for _ in range(int(START_S / 0.05)):
        nodes = (await client.admin.cluster())["nodes"]
        if sum(row["up"] for row in nodes) == NODES:
            return
        await anyio.sleep(0.05)
    raise TimeoutError(f"{NODES} nodes were not up within {START_S:g} s")
