"""Loads of scheduled messages: measure how late consumers receive them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import anyio

import sandq
import sandq.sync
from benchmarks.load.consume import CREDIT, GROUP, offsets_of, subscribe, take
from benchmarks.load.work import Done, Ready
from benchmarks.produce import TOPIC, VALUE, frames_of
from benchmarks.result import DUE, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode, peek
from sandq.model.offsets import deliver_ms
from sandq.protocol.replies import Deliver

MESSAGES_PER_MS = 50
"""Assumed minimum speed of scheduling, in messages per ms."""
LEASE_S = 5.0
"""Duration of leases. If an ack is lost with the dead leader, its messages are redelivered after their lease at the
latest."""
QUIET_S = LEASE_S + 2.0
PATIENCE_S = 60.0
BATCH = 1000


def lateness(port: int, messages: int, per_s: int, lead_ms: int) -> Ready:
    """Receive messages; report their lateness, which is negative for early ones. `per_s`: messages due per second,
    evenly; 0: all are due in one millisecond. The first message is due `lead_ms` after storing begins, plus the assumed
    time to store all messages."""
    wire = Wire(port)
    first_ms = int(time.time() * 1000) + lead_ms + messages // MESSAGES_PER_MS
    times = [first_ms + at * 1000 // per_s for at in range(messages)] if per_s else [first_ms] * messages
    batches = [
        encode({Column.VALUE: [VALUE] * len(part), Column.DELIVER_MS: part})
        for part in (times[at : at + BATCH] for at in range(0, messages, BATCH))
    ]
    drive([Flow(wire, frames_of(batches, 0), 4)])
    wire.socket.setblocking(True)

    def run(began_s: float) -> Done:
        subscribe(wire)
        check_lead(first_ms)
        late_s: list[float] = []

        def seen(now_s: float, delivery: Deliver) -> None:
            column = offsets_of(delivery, peek(delivery.batch).count)
            late_s.extend([now_s - deliver_ms(offset) / 1000 for offset in column])

        take(wire, messages, each=bool(per_s), seen=seen, clock=time.time)
        result = LoadResult(messages, time.perf_counter() - began_s)
        early = sum(value < 0 for value in late_s)
        result.errors = early
        result.details = {"least ms": min(late_s) * 1000, "early": early}
        return Done(result, partial(Latency.of, DUE, late_s))

    return Ready(run)


def failover(addresses: Sequence[str], messages: int, lead_ms: int) -> Ready:
    """Receive messages due in one millisecond with the Python client; the partition's leader may change."""
    due_ms = int(time.time() * 1000) + lead_ms + messages // MESSAGES_PER_MS
    values = [b"%09d" % number for number in range(messages)]
    with sandq.sync.connect(*addresses) as client, client.producer(TOPIC) as producer:
        producer.send_many([{"value": value, "deliver_at": due_ms} for value in values])
    received: Counter[bytes] = Counter()
    late_s: list[float] = []

    async def receive() -> None:
        async with (
            sandq.connect(*addresses) as client,
            client.subscribe(TOPIC, group=GROUP, credit=min(messages, CREDIT)) as subscription,
        ):
            check_lead(due_ms)
            with anyio.move_on_after(PATIENCE_S) as patience:
                async for batch in subscription.batches():
                    now_s = time.time() - due_ms / 1000
                    came = [value or b"" for value in batch.values]
                    late_s.extend([now_s for value in came if value not in received])
                    received.update(came)
                    batch.ack()
                    if len(received) == messages:
                        # all have arrived; a redelivery arrives within a lease
                        patience.deadline = min(patience.deadline, anyio.current_time() + QUIET_S)

    def run(began_s: float) -> Done:
        anyio.run(receive, backend="trio")
        lost, early = len(set(values) - set(received)), sum(value < 0 for value in late_s)
        result = LoadResult(messages, time.perf_counter() - began_s, errors=lost + early)
        result.details = {
            "early": early,
            "lost": lost,
            "twice": sum(times > 1 for times in received.values()),
            "first ms": min(late_s, default=0.0) * 1000,
            "first ms after the longest pause": _first_after_pause(late_s) * 1000,
        }
        return Done(result, partial(Latency.of, DUE, late_s))

    return Ready(run, {"due_ms": due_ms})


def _first_after_pause(late_s: Sequence[float]) -> float:
    """Return the lateness of the first message after the longest pause, counted from the due time of all messages. This
    is the duration of the failover, even if the old leader had delivered some messages."""
    return max(pairwise([0.0, *late_s]), key=lambda two: two[1] - two[0], default=(0.0, 0.0))[1]


def check_lead(due_ms: int) -> None:
    """Fail if messages were due before the consumer waited: their lateness would mean nothing."""
    if time.time() * 1000 >= due_ms:
        raise TimeoutError("the preparation took too long: messages were due before they were waited for")
