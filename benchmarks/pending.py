"""Measure messages that are due in a month: the cost to store them, memory, and a start after the node was killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.driver import measure, node_with
from benchmarks.load.consume import GROUP, subscribe
from benchmarks.process import memory_bytes, running
from benchmarks.produce import MONTH_MS, PARTITIONS, TOPIC, batch_of, frames_of, links
from benchmarks.result import Goal, Measured, Row, Setting
from benchmarks.wire import Wire
from demo.node import Node
from sandq.errors import SandqError
from sandq.node import STORES_NAME
from sandq.protocol.frames import Type
from sandq.protocol.requests import Subscribe
from sandq.protocol.requests_admin import GroupSeek

MEMORY = Goal(60, "MB over an empty node", at_least=False)
IDLE_MEMORY = Goal(300, "MB over an empty node", at_least=False)
RETRYING_MEMORY = Goal(20, "MB over an idle group", at_least=False)
LARGE_MEMORY = Goal(100, "MB over an empty node", at_least=False, of="MB over empty")
RESTART = Goal(15, "s to the first answer", at_least=False)
COUNTS = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
QUICK_SHARE = 10
QUICK_MOST = 40_000
BATCH = 1000
SETTLE_S = 3.0
RESTART_S = 120.0
POLL_S = 0.01
_MB = 1_000_000


def pending(messages: int, setting: Setting, *, value: str) -> Measured:
    """Schedule far ahead, let the node settle, measure; kill and start it, and wait for a response and a delivery."""
    messages = setting.count(messages, min(QUICK_MOST, messages // QUICK_SHARE))
    batch = BATCH
    while messages % (batch * PARTITIONS):
        batch //= 2
    with node_with(setting, TOPIC, PARTITIONS, lease="60s") as node:
        assert node.pid is not None
        time.sleep(setting.count(10, 5) / 10)
        empty = memory_bytes(node.pid)
        to = links([node.port], PARTITIONS, PARTITIONS)
        count = messages // batch // PARTITIONS
        measured = measure(
            node.metered, "produce_many", links=to, size=batch, count=count, window=2, within_ms=MONTH_MS
        )
        time.sleep(0.2 if setting.quick else SETTLE_S)
        full = memory_bytes(node.pid)
        details = {
            "MB over empty": (full["rss"] - empty["rss"]) / _MB,
            "of it anonymous": (full["anonymous"] - empty["anonymous"]) / _MB,
            "empty MB": empty["rss"] / _MB,
            "produced/s": measured.value,
            **_restarted(node),
            "stored bytes a message": stored_bytes(node.directory) / messages,
        }
        assert node.pid is not None
        details["MB after it"] = memory_bytes(node.pid)["rss"] / _MB
    measured.client_cpu_us = None  # the process also created the batches in between
    measured.details = details
    measured.value = measured.details.pop(value)
    return measured


def retrying(messages: int, setting: Setting) -> Measured:
    """Nack all messages of a partition, each with a time of its own for the next attempt, and measure the memory over a
    group that has none; then kill the node and start it."""
    messages, warm = setting.count(messages, QUICK_MOST), setting.count(100_000, 1000)
    backoff = {"kind": "fixed", "first": "1h", "cap": "2h", "jitter_percent": 20}
    with node_with(setting, TOPIC, 1, lease="60s", max_attempts="none", backoff=backoff) as node:
        assert node.pid is not None
        measure(node.metered, "consume_nack", port=node.port, messages=warm, size=BATCH)
        wire = Wire(node.port)
        wire.call(GroupSeek(TOPIC, GROUP, "latest").frame)
        wire.close()
        time.sleep(0.2 if setting.quick else SETTLE_S)
        idle = memory_bytes(node.pid)
        measured = measure(node.metered, "consume_nack", port=node.port, messages=messages, size=BATCH)
        time.sleep(0.2 if setting.quick else SETTLE_S)
        full = memory_bytes(node.pid)
        details = {
            "MB over idle": (full["anonymous"] - idle["anonymous"]) / _MB,
            "idle MB": idle["anonymous"] / _MB,
            "nacked/s": measured.value,
            **_restarted(node, 1),
            "stored bytes a message": stored_bytes(node.directory) / messages,
        }
        assert node.pid is not None
        details["MB after it"] = memory_bytes(node.pid)["anonymous"] / _MB
    measured.client_cpu_us = None
    measured.details = details
    measured.value = details.pop("MB over idle")
    return measured


def idle_groups(partitions: int, groups: int, messages: int, setting: Setting) -> Measured:
    """Measure the memory of groups without consumers, in many partitions with pending messages. LevelDB's mapped
    tables, which the kernel may drop, do not count."""
    partitions, messages = setting.count(partitions, 20), setting.count(messages, 1000)
    with running(setting.where, setting.name) as node:
        node.stop()
        node.configure(HEALTH__STALL_AFTER="60s")  # a slow disk must not affect the measurement
        node.start()
        node.wait_until_it_serves()
        assert node.pid is not None
        empty = memory_bytes(node.pid)
        wire = Wire(node.port)
        wire.create_topic(TOPIC, partitions)
        for number in range(groups):
            wire.call(Subscribe(number, TOPIC, f"g{number}", "benchmarks-1", 0, 60_000, "earliest", []).frame)
        wire.close()
        opened = memory_bytes(node.pid)
        to = links([node.port], PARTITIONS, partitions)
        count = messages // BATCH * partitions // PARTITIONS
        measured = measure(
            node.metered, "produce_many", links=to, size=BATCH, count=count, window=2, within_ms=MONTH_MS
        )
        time.sleep(0.2 if setting.quick else SETTLE_S)
        full = memory_bytes(node.pid)
        details = {
            "MB over empty": (full["anonymous"] - empty["anonymous"]) / _MB,
            "of it before the messages": (opened["anonymous"] - empty["anonymous"]) / _MB,
            "with tables that are mapped": (full["rss"] - empty["rss"]) / _MB,
            "empty MB": empty["rss"] / _MB,
            "produced/s": measured.value,
        }
    measured.client_cpu_us = None
    measured.details = details
    measured.value = details.pop("MB over empty")
    return measured


def _restarted(node: Node, partitions: int = PARTITIONS) -> dict[str, float]:
    """Kill the node with SIGKILL and start it. Returns seconds until it accepts connections, until each partition has
    responded, and until a new message is delivered."""
    node.kill()
    began_s = time.perf_counter()
    node.start()
    _until(node.serves)
    serves_s = time.perf_counter() - began_s
    wire = Wire(node.port)
    for partition in range(partitions):
        _until(partial(_answers, wire, partition))
    answers_s = time.perf_counter() - began_s
    subscribe(wire)
    while not any(frame[0] == Type.DELIVER for frame in wire.receive()):
        pass
    delivers_s = time.perf_counter() - began_s
    wire.close()
    return {"restart, serves s": serves_s, "restart s": answers_s, "restart, delivers s": delivers_s}


def stored_bytes(directory: Path) -> int:
    """Return the size of all rows on disk, without the log."""
    return sum(path.stat().st_size for path in directory.rglob(f"{STORES_NAME}/*"))


def _answers(wire: Wire, partition: int) -> bool:
    """Return whether the node delivers a message that is due now."""
    try:
        wire.call(lambda number: frames_of([batch_of(1)], partition)[0])
    except SandqError as error:
        if not error.retriable:
            raise
        return False
    return True


def _until(ask: Callable[[], bool]) -> None:
    until_s = time.perf_counter() + RESTART_S
    while not ask():
        if time.perf_counter() > until_s:
            raise TimeoutError(f"the node has not come back within {RESTART_S:g} s")
        time.sleep(POLL_S)


_COUNTED = tuple(
    Row(
        f"pending_{name}",
        "pending",
        f"{count:,} for a month, batches of up to {BATCH} over {PARTITIONS} connections, then SIGKILL and a start",
        partial(pending, count, value=value),
        unit,
        goal,
        further=further,
    )
    for name, count, value, unit, goal, further in (
        ("10k", COUNTS["10k"], "MB over empty", "MB over empty", None, ()),
        ("100k", COUNTS["100k"], "MB over empty", "MB over empty", None, ()),
        ("1m", COUNTS["1m"], "MB over empty", "MB over empty", MEMORY, ()),
        ("10m", COUNTS["10m"], "restart s", "s to restart", RESTART, (LARGE_MEMORY,)),
    )
)
ROWS = (
    *_COUNTED,
    Row(
        "retrying_1m",
        "pending",
        "1,000,000 of one partition wait for their next attempt in 48 to 72 minutes, then SIGKILL and a start",
        partial(retrying, 1_000_000),
        "MB over an idle group",
        RETRYING_MEMORY,
    ),
    Row(
        "pending_groups",
        "pending",
        "1,000 partitions with 10 groups without consumers, 4,000 for a month in each",
        partial(idle_groups, 1000, 10, 4000),
        "MB over empty",
        IDLE_MEMORY,
    ),
)
