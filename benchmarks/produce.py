"""Producing: batches of several sizes, singles, lock-step, scheduled; and the client's own producer."""

from __future__ import annotations

import random
import time

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


def frames(batches: list[bytes], partition: int) -> list[bytes]:
    """PRODUCE requests, numbered from 1."""
    return [Produce(TOPIC, partition, 0, 0, 0, batch).frame(number) for number, batch in enumerate(batches, 1)]


def produce(
    where: Where, name: str, what: str, goal: Goal | None, *, connections: int, window: int, batches: list[list[bytes]]
) -> Result:
    """Send a list of batches over each connection, to partitions in turn."""
    size = int.from_bytes(batches[0][0][4:4], "little") or _count(batches[0][0])
    with running(where, name) as node:
        assert node.pid is not None
        wires = [Wire(node.port) for _ in range(connections)]
        wires[0].create_topic(TOPIC, PARTITIONS)
        warm = [Flow(wire, frames(batches[0][:1], at % PARTITIONS), 1) for at, wire in enumerate(wires)]
        drive(warm)
        flows = [
            Flow(wire, frames(own, at % PARTITIONS), window)
            for at, (wire, own) in enumerate(zip(wires, batches, strict=True))
        ]
        before_s = cpu_s(node.pid)
        driven = drive(flows)
        used_s = cpu_s(node.pid) - before_s
        for wire in wires:
            wire.close()
    messages = size * sum(len(own) for own in batches)
    result = Result(name, what, "raw", messages, messages / driven.seconds, "msg/s", goal)
    result.cpu_us = used_s * 1e6 / messages
    if driven.answer_s:
        ordered = sorted(driven.answer_s)
        result.details = {
            "answer p50 ms": ordered[len(ordered) // 2] * 1000,
            "answer p99 ms": ordered[len(ordered) * 99 // 100] * 1000,
        }
    return result
