"""Messages that become due at a steady rate over several partitions, received with the Python client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import anyio

import sandq
from benchmarks.load.consume import GROUP
from benchmarks.load.lateness import BATCH, MESSAGES_PER_MS, check_lead
from benchmarks.load.work import Done, Ready
from benchmarks.produce import TOPIC, VALUE, frames_of
from benchmarks.result import DUE, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode

WORKERS = 10
"""Number of tasks that each await an ack before the next message."""
TIME_DIGITS = 13
"""Each value begins with its due time in ms, with this number of digits."""

Came = Callable[[Iterable[bytes | None]], bool]
"""Record the values of received messages. Return whether these were the last."""


def due(address: str, port: int, messages: int, per_s: int, partitions: int, lead_ms: int, mode: str) -> Ready:
    """Receive messages in one of the `MODES`, and report how late each came.

    `per_s`: messages due per second in all partitions together, in turns. The first message is due `lead_ms` after
    storing begins, plus the assumed time to store all messages."""
    first_ms = int(time.time() * 1000) + lead_ms + messages // MESSAGES_PER_MS
    wire = Wire(port)
    for partition in range(partitions):
        times = [first_ms + number * 1000 // per_s for number in range(partition, messages, partitions)]
        parts = [times[at : at + BATCH] for at in range(0, len(times), BATCH)]
        batches = [encode({Column.VALUE: [_value(at) for at in part], Column.DELIVER_MS: part}) for part in parts]
        drive([Flow(wire, frames_of(batches, partition), 4)])
    wire.close()
    late_s: list[float] = []
    turns = 0

    def came(values: Iterable[bytes | None]) -> bool:
        nonlocal turns
        now_s, turns = time.time(), turns + 1
        late_s.extend([now_s - int((value or b"")[:TIME_DIGITS]) / 1000 for value in values])
        return len(late_s) >= messages

    async def receive() -> None:
        async with sandq.connect(address) as client, client.subscribe(TOPIC, group=GROUP) as subscription:
            check_lead(first_ms)
            await MODES[mode](subscription, came)

    def run(began_s: float) -> Done:
        anyio.run(receive, backend="trio")
        result = LoadResult(messages, time.perf_counter() - began_s)
        early = sum(value < 0 for value in late_s)
        result.errors = early
        result.details = {"early": early, "least ms": min(late_s) * 1000, "messages a turn": messages / turns}
        return Done(result, partial(Latency.of, DUE, late_s))

    return Ready(run)


def _value(at_ms: int) -> bytes:
    return b"%0*d" % (TIME_DIGITS, at_ms) + VALUE[TIME_DIGITS:]


async def _by_batch(subscription: sandq.Subscription, came: Came) -> None:
    """Ack each batch without waiting for the reply."""
    async for batch in subscription.batches():
        batch.ack()
        if came(batch.values):
            return


async def _each(subscription: sandq.Subscription, came: Came) -> None:
    """Let `WORKERS` tasks await the ack of one message each."""

    async def work() -> None:
        async for message in subscription:
            await message.ack()
            if came([message.value]):
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(WORKERS):
            tasks.start_soon(work)


MODES: dict[str, Callable[[sandq.Subscription, Came], Awaitable[None]]] = {"batches": _by_batch, "each": _each}
