"""An outage: a service that the handlers call is down for the messages of half of the tenants, and recovers."""

from __future__ import annotations

import math
import struct
import time
from collections import Counter
from functools import partial

import anyio

import sandq
from benchmarks.load.work import Done, Ready
from benchmarks.produce import TOPIC
from benchmarks.result import INTENDED, Latency, LoadResult

GROUP = "g"
TENANTS = 20
"""Number of tenants. The messages of every second one fail during an outage."""
CREDIT = 5000
TICK_S = 0.01
QUIET_S = 1.0
DRAIN_S = 120.0
"""Maximum time after the outage until each message must be acked, in seconds."""
_VALUE = struct.Struct("<Qd84x")


def outage(address: str, seconds: float, per_s: int, is_down: bool) -> Ready:
    """Produce at a rate, and ack each message; if `is_down`, nack those of failing tenants until the production ends.

    The latencies are those of healthy tenants, from the planned send. The details count deliveries."""

    async def loop() -> tuple[list[float], Counter[int], dict[str, float]]:
        late_s: list[float] = []
        acked: Counter[int] = Counter()
        found: Counter[str] = Counter()
        is_failing = is_down
        total = int(seconds * per_s)

        async def produce(client: sandq.Client) -> None:
            nonlocal is_failing
            began_s = time.perf_counter()
            async with client.producer(TOPIC) as producer:
                for tick in range(math.ceil(seconds / TICK_S)):
                    at_s = began_s + tick * TICK_S
                    await anyio.sleep(max(0.0, at_s - time.perf_counter()))
                    for number in range(int(tick * TICK_S * per_s), min(int((tick + 1) * TICK_S * per_s), total)):
                        await producer.send(_VALUE.pack(number, at_s), tenant=f"t{number % TENANTS}")
            is_failing = False

        async with sandq.connect(address) as client, anyio.create_task_group() as sending:
            await client.admin.topic(TOPIC)
            sending.start_soon(produce, client)
            async with client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription:
                async for message in subscription:
                    number, sent_s = _VALUE.unpack(message.value or b"")
                    is_healthy = number % TENANTS % 2 == 0
                    if is_healthy and message.attempt == 1:
                        late_s.append(time.perf_counter() - sent_s)
                    if is_failing and not is_healthy:
                        found["nacks"] += 1
                        message.nack(error="the service is down")
                        continue
                    found["repeated"] += number in acked
                    acked[number] += 1
                    message.ack()
                    if len(acked) == total:
                        break
        return late_s, acked, {name: float(count) for name, count in found.items()}

    def run(began_s: float) -> Done:
        late_s, acked, details = anyio.run(loop, backend="trio")
        result = LoadResult(len(acked), time.perf_counter() - began_s, details=details)
        return Done(result, partial(Latency.of, INTENDED, late_s))

    return Ready(run)
