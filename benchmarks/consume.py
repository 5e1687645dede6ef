"""Measure consuming: acks as ranges, an ack for each message, with a producer, and the client's subscription."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

from benchmarks.driver import TOGETHER_S, Load, measure, node_with
from benchmarks.process import Meter
from benchmarks.produce import PARTITIONS, TOPIC, links
from benchmarks.result import Goal, Measured, Row, Setting

BATCH = 1000
EACH = Goal(300_000, "msg/s")
TRIMMED = Goal(1.25, "x", at_least=False)
LEASE = "60s"
BOTH_PER_S = 100_000
BOTH_BATCH = 100
BOTH_CONNECTIONS = 4
TRIMMED_BATCH = 10
"""Messages per batch. Small, so that there are many log rows: if reading scanned trimmed rows, the figure would show
it."""


def consume(setting: Setting, *, each: bool) -> Measured:
    """Consume all due messages of a topic over one connection, until the last ack is confirmed."""
    messages = setting.count(1_000_000, 40_000)
    with node_with(setting, TOPIC, PARTITIONS, lease=LEASE) as node:
        return measure(node.metered, "consume", port=node.port, messages=messages, size=BATCH, each=each)


def client(setting: Setting, *, batches: bool) -> Measured:
    """Consume with `async for message` and `message.ack()`, or in whole batches, with one client: the speed of a Python
    program."""
    messages = setting.count(300_000, 20_000)
    with node_with(setting, TOPIC, PARTITIONS, lease=LEASE) as node:
        return measure(
            node.metered, "client_consume", address=node.address, port=node.port, messages=messages, batches=batches
        )


def both(setting: Setting) -> Measured:
    """Produce at a rate in one process; receive and ack each message in another. Times count from the planned send."""
    count = setting.count(BOTH_PER_S * 5, BOTH_PER_S // 2) // BOTH_BATCH // BOTH_CONNECTIONS
    messages = count * BOTH_BATCH * BOTH_CONNECTIONS
    with node_with(setting, TOPIC, PARTITIONS, lease=LEASE) as node:
        to = links([node.port], BOTH_CONNECTIONS, PARTITIONS)
        spec = {"size": BOTH_BATCH, "per_s": BOTH_PER_S}
        with (
            Load("consume_paced", port=node.port, messages=messages, **spec) as consumer,
            Load("produce_paced", links=to, count=count, numbered=True, **spec) as producer,
        ):
            consumer.ready()
            producer.ready()
            meter, began_s = Meter(node.metered), time.perf_counter() + TOGETHER_S
            consumer.go(began_s)
            producer.go(began_s)
            produced, consumed = producer.result(), consumer.result()
            used = meter.stop()
    consumed.cpu_s += produced.cpu_s
    measured = Measured.of(consumed, used)
    assert produced.latency is not None
    measured.details |= {
        "produced/s": produced.messages / produced.seconds,
        "produce p50 ms": produced.latency.at(0.5),
        "produce p99 ms": produced.latency.at(0.99),
    }
    return measured


def trimming(setting: Setting) -> Measured:
    """Check that reading at the cursor stays cheap while everything before it is trimmed.

    The value is the node's CPU for the last tenth divided by that for the second tenth (the first one warms up).
    """
    messages = setting.count(3_000_000, 40_000)
    with node_with(setting, TOPIC, 1, lease=LEASE) as node:
        measured = measure(
            node.metered, "consume_trimming", port=node.port, pid=node.pid, messages=messages, size=TRIMMED_BATCH
        )
    marks = [measured.details.pop(name) for name in list(measured.details) if name.startswith("mark")]
    parts = [after - before for before, after in pairwise(marks)]
    rate, base = measured.value, parts[1] or 0.01  # the resolution of the system clock
    measured.value = parts[-1] / base
    measured.details |= {"msg/s": rate, "most of a tenth, x": max(parts[1:]) / base}
    return measured


ROWS = (
    Row(
        "consume",
        "consume",
        f"batches of {BATCH}, acks gathered into a range, as the client sends them",
        partial(consume, each=False),
        goal=EACH,
    ),
    Row("consume_each", "consume", f"batches of {BATCH}, every message named", partial(consume, each=True), goal=EACH),
    Row(
        "consume_client",
        "consume",
        "async for message: message.ack(), one client",
        partial(client, batches=False),
        driver="client",
    ),
    Row(
        "consume_client_batches",
        "consume",
        "async for batch in subscription.batches(): batch.ack(), one client",
        partial(client, batches=True),
        driver="client",
    ),
    Row(
        "both",
        "consume",
        f"batches of {BOTH_BATCH} at {BOTH_PER_S:,} msg/s, while another process takes them and acks each message",
        both,
    ),
    Row(
        "trimming",
        "consume",
        f"CPU for the last tenth over the second, batches of {TRIMMED_BATCH}, trimmed as they are acked",
        trimming,
        "x",
        TRIMMED,
    ),
)
