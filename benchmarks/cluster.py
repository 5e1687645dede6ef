"""Measure three nodes: the cost of an acknowledgement that is on the disks of a majority."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio

import demo.cluster
import sandq
from benchmarks.driver import measure
from benchmarks.process import Metered, cpu_s, data_directory, program_of, serve_metrics
from benchmarks.produce import TOPIC, links
from benchmarks.result import CALLED, CPU, Goal, Latency, Measured, Row, Setting
from demo.node import ROOT, Node, free_port

NODES = 3
START_S = 30.0
BATCHED = Goal(200_000, "msg/s")
ENTRIES = Goal(60_000, "entries/s")
"""Goal for Raft alone, in entries per second. Through the whole broker, each entry would be one message."""
LARGE = Goal(100, "MB/s")
COMMIT = Goal(2.0, "ms", at_least=False)
COMMIT_CPU = Goal(1500, "us of CPU, all nodes", at_least=False, of=CPU)
IDLE = Goal(6.0, "% of a core a node", at_least=False)
FAILOVER = Goal(3.0, "s", at_least=False)
LARGE_BYTES = 100_000
GROUPS = 300


class Cluster(demo.cluster.Cluster):
    """Processes of three nodes that have formed a cluster, and their resource use."""

    def __init__(self, directory: Path, program: tuple[str, ...]) -> None:
        self._http_ports: dict[str, int] = {}
        super().__init__(directory, program)

    def add(self, name: str) -> Node:
        node = super().add(name)
        self._http_ports[name] = serve_metrics(node)
        return node

    @property
    def metered(self) -> Metered:
        return [(node, self._http_ports[name]) for name, node in self.nodes.items()]

    def cpu_s(self) -> float:
        """Resource use of all running nodes."""
        return sum(cpu_s(node.pid) for node in self.nodes.values() if node.pid is not None)

    def form(self, topic: str = TOPIC, partitions: int = 1, replicas: int = NODES, **settings: Any) -> list[str]:
        """Create a topic once all nodes are registered; return the leader of each partition."""

        async def run() -> list[str]:
            async with sandq.connect(*self.addresses) as client:
                await _until_up(client)
                await client.admin.create_topic(topic, partitions=partitions, replicas=replicas, **settings)
                return [str(row.leader) for row in (await client.admin.topic(topic)).partitions]

        return anyio.run(run, backend="trio")


@contextlib.contextmanager
def cluster(setting: Setting, **settings: str) -> Iterator[Cluster]:
    """Three serving nodes; their data is removed at the end."""
    with data_directory(setting.where) as directory:
        made = Cluster(directory, program_of(setting.where, setting.name))
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


def produce(
    size: int, partitions: int, window: int, batches: int, quick_batches: int, setting: Setting, *,
    replicas: int = NODES, merged: bool = True, **spec: Any,
) -> Measured:  # fmt: skip
    """Send `batches` of `size` messages to each partition, over a connection to its leader.

    `merged`: waiting batches become one Raft entry, as in normal operation.
    """
    settings = {} if merged else {"LIMITS__ENTRY_MESSAGES": "1"}
    with cluster(setting, **settings) as nodes:
        leaders = nodes.form(partitions=partitions, replicas=replicas)
        to = links([nodes.nodes[leader].port for leader in leaders], partitions, partitions)
        count = setting.count(batches, quick_batches)
        return measure(nodes.metered, "produce", links=to, size=size, count=count, window=window, **spec)


def large(setting: Setting) -> Measured:
    """Send large messages through one Raft group."""
    measured = produce(1, 1, 64, 5000, 100, setting, merged=False, value_bytes=LARGE_BYTES)
    measured.value *= LARGE_BYTES / 1e6
    return measured


def commit(setting: Setting) -> Measured:
    """Send one message after the other, each after the acknowledgement of the previous one."""
    measured = produce(1, 1, 1, 3000, 100, setting)
    assert measured.latency is not None
    measured.value = measured.latency.at(0.5)
    return measured


def raft(setting: Setting) -> Measured:
    """Measure the share of replication itself: no clients, no state machines."""
    count = setting.count(200_000, 5000)
    ports = [f"node{at}={free_port()}" for at in range(NODES)]
    nodes: list[subprocess.Popen[str]] = []
    with data_directory(setting.where) as directory:
        try:
            for at in range(NODES):
                own = directory / str(at)
                own.mkdir()
                arguments = [str(own), str(count), *ports[at:], *ports[:at]]
                command = [sys.executable, "-m", "benchmarks.raft_node", *arguments]
                nodes.append(
                    subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                )
            leader = nodes[0].stdout
            assert leader is not None
            assert leader.readline() == "begun\n"
            before_s = sum(cpu_s(node.pid) for node in nodes)
            seconds = float(leader.readline())
            used_s = sum(cpu_s(node.pid) for node in nodes) - before_s
        finally:
            for node in nodes:
                node.kill()
                node.communicate()
    return Measured(count, count / seconds, cpu_us=used_s * 1e6 / count)


def idle(setting: Setting) -> Measured:
    """Measure the CPU of a node with idle groups."""
    groups, seconds = setting.count(GROUPS, 30), setting.count(10, 2)
    with cluster(setting) as nodes:
        nodes.form(partitions=groups)
        time.sleep(2.0)
        before_s = nodes.cpu_s()
        time.sleep(seconds)
        used_s = nodes.cpu_s() - before_s
    return Measured(groups, used_s / seconds / NODES * 100)


def failover(setting: Setting) -> Measured:
    """Kill the leader with SIGKILL; measure the time to the next acknowledged message. The slowest counts."""
    times = setting.count(12, 1)
    with cluster(setting) as nodes:
        nodes.form()
        taken_s = [anyio.run(partial(_kill_leader, nodes), backend="trio") for _ in range(times)]
    return Measured(times, max(taken_s), latency=Latency.of(CALLED, taken_s))


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
    """Wait until all nodes are registered and reachable."""
    for _ in range(int(START_S / 0.05)):
        nodes = (await client.admin.cluster())["nodes"]
        if sum(row["up"] for row in nodes) == NODES:
            return
        await anyio.sleep(0.05)
    raise TimeoutError(f"{NODES} nodes were not up within {START_S:g} s")


def _row(
    name: str,
    what: str,
    measure: Callable[[Setting], Measured],
    unit: str,
    goal: Goal | None = None,
    driver: str = "raw",
    *further: Goal,
) -> Row:
    return Row(name, "replicas", what, measure, unit, goal, driver, further)


ROWS = (
    _row(
        "cluster_1000",
        "3 replicas, 6 partitions, batches of 1000 x 100 B, 4 in flight to each",
        partial(produce, 1000, 6, 4, 250, 10),
        "msg/s",
        BATCHED,
    ),
    _row(
        "cluster_1000_replicas_1",
        "the same on the same 3 nodes, 1 replica",
        partial(produce, 1000, 6, 4, 250, 10, replicas=1),
        "msg/s",
    ),
    _row(
        "cluster_singles",
        "3 replicas, one partition, single messages of 100 B over one connection, 2000 on the way",
        partial(produce, 1, 1, 2000, 60_000, 2000),
        "msg/s",
    ),
    _row(
        "raft_entries",
        "Raft alone: 3 members, one group, entries of 100 B, 4000 on the way",
        raft,
        "entries/s",
        ENTRIES,
        "none",
    ),
    _row(
        "cluster_100KB",
        "3 replicas, one group, an entry of 100 KB for each message, 64 on the way",
        large,
        "MB/s",
        LARGE,
    ),
    _row(
        "cluster_commit",
        "3 replicas, one message on the way: its answer, p50",
        commit,
        "ms",
        COMMIT,
        "raw",
        COMMIT_CPU,
    ),
    _row(
        "cluster_idle",
        f"3 replicas, {GROUPS} idle groups: CPU of a node",
        idle,
        "% of a core",
        IDLE,
        "none",
    ),
    _row(
        "cluster_failover",
        "kill -9 of the leader to the next acknowledged message, 12 times: the slowest",
        failover,
        "s",
        FAILOVER,
        "client",
    ),
)
