"""Operations on many pending or acked messages."""

from __future__ import annotations

import random
import time

import anyio

import sandq
from benchmarks.load.consume import subscribe, take
from benchmarks.load.work import Done, Ready
from benchmarks.produce import HOUR_MS, PARTITIONS, TOPIC, VALUE, frames_of
from benchmarks.result import LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode
from sandq.protocol.replies import Deliver

BATCH = 1000
MESSAGES_PER_MS = 20
"""Assumed minimum speed of scheduling, in messages per ms."""
LOOK_S = 0.2
PATIENCE_S = 60.0


def job(address: str, port: int, messages: int, what: str, within_ms: int) -> Ready:
    """Cancel ("cancel") or move by an hour ("move") all messages. They are due in an hour, spread over `within_ms`; 0:
    each batch has one time."""
    _fill(port, messages, int(time.time() * 1000) + HOUR_MS, within_ms, PARTITIONS)

    async def work() -> sandq.JobResult:
        async with sandq.connect(address) as client:
            pending = client.messages(TOPIC)
            return await (pending.cancel_all() if what == "cancel" else pending.move_all(shift="1h"))

    def run(began_s: float) -> Done:
        found = anyio.run(work, backend="trio")
        return Done(LoadResult(messages, time.perf_counter() - began_s, errors=messages - found.done))

    return Ready(run)


def trim(address: str, port: int, messages: int, within_ms: int) -> Ready:
    """Wait until the log releases the messages that a group has acked, each in a row of its own. The topic's
    `retention` begins after that."""
    due_ms = int(time.time() * 1000) + messages // MESSAGES_PER_MS
    wire = _fill(port, messages, due_ms, within_ms, 1)
    subscribe(wire)
    take(wire, messages, each=False)

    async def gone() -> None:
        async with sandq.connect(address) as client:
            with anyio.fail_after(PATIENCE_S):
                while sum([row["messages"] for row in await client.admin.stats(TOPIC)]):  # noqa: ASYNC110
                    await anyio.sleep(LOOK_S)

    def run(began_s: float) -> Done:
        anyio.run(gone, backend="trio")
        return Done(LoadResult(messages, time.perf_counter() - began_s))

    return Ready(run)


def earliest(port: int, messages: int, within_ms: int) -> Ready:
    """Let a group begin with messages that have long been due, and receive and ack them all. Details: the time until
    the first message."""
    due_ms = int(time.time() * 1000) + messages // MESSAGES_PER_MS
    wire = _fill(port, messages, due_ms, within_ms, 1)
    time.sleep(max(0.0, (due_ms + within_ms) / 1000 - time.time()))

    def run(began_s: float) -> Done:
        came_s: list[float] = []

        def seen(now_s: float, delivery: Deliver) -> None:
            if not came_s:
                came_s.append(now_s)

        subscribe(wire)
        take(wire, messages, each=False, seen=seen)
        result = LoadResult(messages, time.perf_counter() - began_s)
        result.details = {"first ms": (came_s[0] - began_s) * 1000}
        return Done(result)

    return Ready(run)


def _fill(port: int, messages: int, first_ms: int, within_ms: int, partitions: int) -> Wire:
    """Store this many messages, due from `first_ms` on; with `within_ms` 0 each batch has one time."""
    rng, wire = random.Random(1), Wire(port)
    size = min(BATCH, messages // partitions)
    batches = []
    for _ in range(messages // size):
        moments = [first_ms + int(rng.random() * within_ms) for _ in range(size)]
        batches.append(encode({Column.VALUE: [VALUE] * size, Column.DELIVER_MS: moments}))
    drive([Flow(wire, frames_of(batches, *range(partitions)), 4)])
    wire.socket.setblocking(True)
    if int(time.time() * 1000) >= first_ms:
        raise TimeoutError("the preparation took too long: messages were due before all were stored")
    return wire
