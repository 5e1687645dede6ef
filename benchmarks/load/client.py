"""Loads that use the Python client, as programs do."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

import sandq
from benchmarks.load.consume import CREDIT, GROUP, fill
from benchmarks.load.work import Done, Ready
from benchmarks.produce import PARTITIONS, TOPIC, VALUE
from benchmarks.result import CALLED, INTENDED, Latency, LoadResult
from benchmarks.wire import Wire
from sandq.errors import SandqError

FILL = 1000
SAMPLE = 1000
"""One message of this many is awaited and timed."""
EVERY_S = 0.005
"""Interval at which `notice` sends a message, in seconds. It does not wait for the previous messages."""


def produce(address: str, messages: int) -> Ready:
    """Call `Producer.send` in a loop."""

    async def loop() -> tuple[float, list[float]]:
        taken_s: list[float] = []

        async def settle(called_s: float, receipt: sandq.Receipt) -> None:
            await receipt
            taken_s.append(time.perf_counter() - called_s)

        async with sandq.connect(address) as client, anyio.create_task_group() as settling:
            await client.admin.topic(TOPIC)
            began_s = time.perf_counter()
            async with client.producer(TOPIC) as producer:
                for number in range(messages):
                    if number % SAMPLE:
                        await producer.send(VALUE)
                    else:
                        called_s = time.perf_counter()
                        settling.start_soon(settle, called_s, await producer.send(VALUE))
            seconds = time.perf_counter() - began_s
        return seconds, taken_s

    def run(began_s: float) -> Done:
        seconds, taken_s = anyio.run(loop, backend="trio")
        return Done(LoadResult(messages, seconds), partial(Latency.of, f"{CALLED}, 1 in {SAMPLE:,}", taken_s))

    return Ready(run)


def consume(address: str, port: int, messages: int, batches: bool) -> Ready:
    """Consume all due messages: one by one, or in batches."""
    wire = Wire(port)
    fill(wire, messages, FILL, PARTITIONS)
    wire.close()

    async def loop() -> float:
        async with sandq.connect(address) as client:
            began_s, left = time.perf_counter(), messages
            async with client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription:
                if batches:
                    async for batch in subscription.batches():
                        left -= len(batch)
                        batch.ack()
                        if not left:
                            break
                else:
                    async for message in subscription:
                        message.ack()
                        left -= 1
                        if not left:
                            break
            return time.perf_counter() - began_s

    def run(began_s: float) -> Done:
        return Done(LoadResult(messages, anyio.run(loop, backend="trio")))

    return Ready(run)


def notice(addresses: Sequence[str], topic: str) -> Ready:
    """Produce steadily and consume, until stopped. Reports how long each message took to be acknowledged, and in the
    details how long until a waiting consumer received it."""

    async def loop() -> tuple[list[float], list[float], int]:
        produced_s: list[float] = []
        delivered_s: list[float] = []
        errors = 0
        sent: dict[bytes, float] = {}
        stop = anyio.Event()

        async def settle(intended_s: float, receipt: sandq.Receipt) -> None:
            nonlocal errors
            try:
                await receipt
            except SandqError:
                errors += 1
            produced_s.append(time.perf_counter() - intended_s)

        async def send(client: sandq.Client, settling: anyio.abc.TaskGroup) -> None:
            number, next_s = 0, time.perf_counter()
            async with client.producer(topic) as producer:
                while not stop.is_set():
                    value = b"%09d" % number + VALUE
                    # From the planned send: a message that waits for capacity is late, too.
                    sent[value] = next_s
                    settling.start_soon(settle, next_s, await producer.send(value))
                    number, next_s = number + 1, next_s + EVERY_S
                    await anyio.sleep(max(0.0, next_s - time.perf_counter()))

        async def receive(client: sandq.Client) -> None:
            async with client.subscribe(topic, group=GROUP, credit=1000) as subscription:
                async for message in subscription:
                    intended_s = sent.pop(message.value or b"", None)
                    if intended_s is not None:
                        delivered_s.append(time.perf_counter() - intended_s)
                    message.ack()

        async with sandq.connect(*addresses) as client, anyio.create_task_group() as receiving:
            receiving.start_soon(receive, client)
            async with anyio.create_task_group() as sending:
                sending.start_soon(send, client, sending)
                await anyio.to_thread.run_sync(sys.stdin.readline)
                stop.set()
            receiving.cancel_scope.cancel()
        return produced_s, delivered_s, errors

    def run(began_s: float) -> Done:
        produced_s, delivered_s, errors = anyio.run(loop, backend="trio")
        result = LoadResult(len(produced_s), time.perf_counter() - began_s, errors=errors)
        if (delivered := Latency.of(INTENDED, delivered_s)) is not None:
            result.details = {
                "delivery p50 ms": delivered.at(0.5),
                "delivery p99 s": delivered.at(0.99) / 1000,
                "delivery longest s": delivered.at(1.0) / 1000,
            }
        return Done(result, partial(Latency.of, INTENDED, produced_s))

    return Ready(run)
