"""Measure how late messages are: on an idle node, with a busy producer, with very many due, and when the leader is
killed at their due time.

Lateness is the time at which the frame was received, minus the time in the message's offset, by the machine's only wall
clock. Early messages are below 0.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import anyio

import sandq
from benchmarks.cluster import cluster
from benchmarks.driver import Load, node_with
from benchmarks.process import Meter, MeteredNode
from benchmarks.produce import TOPIC, links
from benchmarks.result import CPU, MAX, Goal, Measured, Row, Setting
from benchmarks.wire import Wire

BURST_GOALS = (Goal(2000, "ms, the last", at_least=False, of=MAX), Goal(6, "us of CPU", at_least=False, of=CPU))
BURST_FAILOVER = Goal(2000, "ms", at_least=False)
HTTP = Goal(20, "ms", at_least=False)
IDLE = Goal(3, "ms", at_least=False)
LOADED = Goal(10, "ms", at_least=False)
LEAD_MS, FAILOVER_LEAD_MS, QUICK_LEAD_MS = 1000, 4000, 15_000
"""Time for the preparation, until the first message is due, in ms. A quick run has more time: it need not show the
speed, but must pass on any machine."""
BUSY_TOPIC = "busy"
BUSY_BATCH = 100
BUSY_CONNECTIONS = 4
LONGER_S = 5
"""Time for which the other process produces after the last due time, in seconds."""
BURST = 200_000
POSTS = 32


@dataclass(frozen=True, slots=True)
class Due:
    """Deliver `messages` while another process may produce. `per_s`: messages due per second, evenly; 0: all are due at
    the same time."""

    messages: int
    quick_messages: int
    per_s: int = 0
    busy_per_s: int = 0
    posts: int = 0
    """Number of connections that POST other messages meanwhile, one after the other."""

    @property
    def is_beside_others(self) -> bool:
        return bool(self.busy_per_s or self.posts)


def _other(due: Due, node: MeteredNode, seconds: int) -> Load:
    """Return a load that keeps the node busy for `seconds`, or until it is stopped."""
    if due.posts:
        ((_, http_port),) = node.metered
        http = f"127.0.0.1:{http_port}"
        return Load("small_flood", http=http, topic=BUSY_TOPIC, connections=due.posts)
    return Load(
        "produce_paced",
        links=links([node.port], BUSY_CONNECTIONS, 1),
        size=BUSY_BATCH,
        count=due.busy_per_s * seconds // BUSY_BATCH // BUSY_CONNECTIONS,
        per_s=due.busy_per_s,
        topic=BUSY_TOPIC,
    )


def lateness(due: Due, setting: Setting) -> Measured:
    """Schedule, wait, receive; the goal is for p99."""
    messages = setting.count(due.messages, due.quick_messages)
    lead_ms = setting.count(LEAD_MS, QUICK_LEAD_MS)
    with node_with(setting, TOPIC, lease="60s") as node, ExitStack() as busy:
        if due.is_beside_others:
            wire = Wire(node.port)
            wire.create_topic(BUSY_TOPIC)
            wire.close()
            other = busy.enter_context(_other(due, node, lead_ms // 1000 + messages // due.per_s + LONGER_S))
            other.ready()
            other.go()
        with Load("lateness", port=node.port, messages=messages, per_s=due.per_s, lead_ms=lead_ms) as load:
            load.ready()
            meter = Meter(node.metered)
            load.go()
            result = load.result()
            used = meter.stop()
        if due.is_beside_others:
            other.check()
    measured = Measured.of(result, used)
    assert measured.latency is not None
    measured.value = measured.latency.at(0.99)
    if due.is_beside_others:
        measured.cpu_us = measured.fsyncs = None  # most of this CPU time was spent on messages of the other process
    return measured


def failover(setting: Setting, *, messages: int = 3000) -> Measured:
    """Kill the leader with SIGKILL at the time at which all messages are due."""
    messages, lead_ms = setting.count(messages, 500), setting.count(FAILOVER_LEAD_MS, QUICK_LEAD_MS)
    with cluster(setting) as nodes:
        nodes.form(lease="5s", max_attempts=None)
        with Load("lateness_failover", addresses=nodes.addresses, messages=messages, lead_ms=lead_ms) as load:
            due_s = load.ready()["due_ms"] / 1000
            leader = nodes.nodes[anyio.run(partial(_leader, nodes.addresses), backend="trio")]
            load.go()
            time.sleep(max(0.0, due_s - time.time()))
            leader.kill()
            result = load.result()
    assert result.latency is not None
    return Measured(
        messages, result.latency.at(0.99), latency=result.latency, errors=result.errors, details=result.details
    )


def failover_burst(setting: Setting) -> Measured:
    """Kill the leader while very many messages are due. The value is the delivery time without the time of the
    failover."""
    measured = failover(setting, messages=BURST)
    measured.details["p99 ms after due"] = measured.value
    measured.value -= measured.details["first ms after the longest pause"]
    return measured


async def _leader(addresses: list[str]) -> str:
    async with sandq.connect(*addresses) as client:
        return str((await client.admin.topic(TOPIC)).partitions[0].leader)


_DUE = (
    ("lateness_idle", "200 due a second, nothing else", Due(2000, 200, 200), IDLE),
    (
        "lateness_loaded",
        "200 due a second, while another process produces 50,000 a second",
        Due(2000, 200, 200, 50_000),
        LOADED,
    ),
    (
        "lateness_http",
        f"200 due a second, while {POSTS} connections POST one message after the other",
        Due(2000, 200, 200, posts=POSTS),
        HTTP,
    ),
    ("lateness_dense", "20,000 due a second", Due(100_000, 20_000, 20_000), LOADED),
)
ROWS = (
    *(Row(name, "lateness", what, partial(lateness, due), "ms p99", goal) for name, what, due, goal in _DUE),
    Row(
        "lateness_burst",
        "lateness",
        f"{BURST:,} due in one millisecond",
        partial(lateness, Due(BURST, 20_000)),
        "ms p99",
        further=BURST_GOALS,
    ),
    Row(
        "lateness_failover",
        "lateness",
        "3 nodes, 3 replicas, 3,000 due in one millisecond, and the leader is killed with SIGKILL in the same",
        failover,
        "ms p99",
        driver="client",
    ),
    Row(
        "lateness_failover_burst",
        "lateness",
        f"the same with {BURST:,}: p99 beyond the first that comes after the failover",
        failover_burst,
        "ms",
        BURST_FAILOVER,
        driver="client",
    ),
)
