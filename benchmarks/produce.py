"""Producing: batches of several sizes, singles, lock-step, scheduled; and the client's own producer."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

import sandq
from benchmarks.process import Where, cpu_s, running
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode
from sandq.protocol.requests import Produce

TOPIC = "bench"
PARTITIONS = 4
VALUE = b"x" * 100
BATCHES = Goal(500_000, "msg/s")
SINGLES = Goal(150_000, "msg/s")
LOCK_STEP = Goal(15_000, "msg/s")
SCHEDULED = Goal(180_000, "msg/s")
_DAY_MS = 86_400_000
_AHEAD_MS = 30 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Load:
    """`batches` of `size` messages over each of `connections`, `window` of them unanswered."""

    name: str
    what: str
    goal: Goal
    size: int
    connections: int
    window: int
    batches: int
    quick_batches: int
    scheduled: bool = False


LOADS = (
    Load("produce_1000", "batches of 1000 x 100 B, 16 connections", BATCHES, 1000, 16, 4, 200, 10),
    Load("produce_100", "batches of 100 x 100 B, 16 connections", BATCHES, 100, 16, 16, 1200, 40),
    Load("produce_10", "batches of 10 x 100 B, 16 connections", SINGLES, 10, 16, 64, 4000, 200),
    Load(
        "produce_pipelined",
        "single messages, 4 connections, 1000 on the way on each",
        SINGLES,
        1,
        4,
        1000,
        75_000,
        5000,
    ),
    Load(
        "produce_lock_step",
        "single messages, 16 connections, one on the way on each",
        LOCK_STEP,
        1,
        16,
        1,
        4000,
        250,
    ),
    Load(
        "produce_scheduled",
        "batches of 1000 x 100 B, each message at its own moment within a month",
        SCHEDULED,
        1000,
        16,
        2,
        30,
        2,
        scheduled=True,
    ),
)


def batch_of(size: int, rng: random.Random | None = None) -> bytes:
    """`size` messages of 100 bytes; with `rng` each has a moment of its own, from tomorrow on."""
    columns: dict[int, list[bytes] | list[int]] = {Column.VALUE: [VALUE] * size}
    if rng is not None:
        first_ms = int(time.time() * 1000) + _DAY_MS
        columns[Column.DELIVER_MS] = [first_ms + rng.randrange(_AHEAD_MS) for _ in range(size)]
    return encode(columns)


def frames_of(batches: Sequence[bytes], partition: int) -> list[bytes]:
    """PRODUCE requests, numbered from 1."""
    return [Produce(TOPIC, partition, 0, 0, 0, 0, batch).frame(number) for number, batch in enumerate(batches, 1)]


def produce(load: Load, where: Where, quick: bool) -> Result:
    """One kind of load."""
    count = load.quick_batches if quick else load.batches
    rng = random.Random(1)
    plain = batch_of(load.size)
    with running(where, load.name) as node:
        assert node.pid is not None
        wires = [Wire(node.port) for _ in range(load.connections)]
        wires[0].create_topic(TOPIC, PARTITIONS)
        flows = []
        for at, wire in enumerate(wires):
            drive([Flow(wire, frames_of([plain], at % PARTITIONS), 1)])  # so that everything is open and warm
            batches = [batch_of(load.size, rng) for _ in range(count)] if load.scheduled else [plain] * count
            flows.append(Flow(wire, frames_of(batches, at % PARTITIONS), load.window))
        before_s = cpu_s(node.pid)
        driven = drive(flows)
        used_s = cpu_s(node.pid) - before_s
        for wire in wires:
            wire.close()
    messages = load.size * count * load.connections
    result = Result(load.name, load.what, "raw", messages, messages / driven.seconds, "msg/s", load.goal)
    result.cpu_us = used_s * 1e6 / messages
    if driven.answer_s:
        ordered = sorted(driven.answer_s)
        result.details = {
            "answer p50 ms": ordered[len(ordered) // 2] * 1000,
            "answer p99 ms": ordered[len(ordered) * 99 // 100] * 1000,
        }
    return result


def produce_client(where: Where, quick: bool) -> Result:
    """`Producer.send` in a loop, one client: what a Python program gets."""
    messages = 20_000 if quick else 300_000
    with running(where, "produce_client") as node:
        pid = node.pid
        assert pid is not None

        async def run() -> tuple[float, float]:
            async with sandq.connect(node.address) as client:
                await client.admin.create_topic(TOPIC, partitions=PARTITIONS)
                before_s, began = cpu_s(pid), time.perf_counter()
                async with client.producer(TOPIC) as producer:
                    for _ in range(messages):
                        await producer.send(VALUE)
                return time.perf_counter() - began, cpu_s(pid) - before_s

        seconds, used_s = anyio.run(run, backend="trio")
    what = "Producer.send in a loop, one client"
    result = Result("produce_client", what, "client", messages, messages / seconds, "msg/s")
    result.cpu_us = used_s * 1e6 / messages
    return result
