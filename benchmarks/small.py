"""Measure one request at a time, as programs are written: each awaits its response before the next request."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.driver import Load, measure, node_with
from benchmarks.keys import node_with_keys
from benchmarks.process import Meter
from benchmarks.produce import PARTITIONS, TOPIC
from benchmarks.result import Goal, Measured, Row, Setting

LEASE = "60s"
UNIT, PER_S = "us", "per s"
POLLS = 1_000


def _cpu(measured: Measured) -> Measured:
    """The goal is for the node's CPU; the rate is reported as well."""
    measured.details[PER_S] = measured.value
    assert measured.cpu_us is not None
    measured.value = measured.cpu_us
    return measured


def produce(setting: Setting, *, clients: int, messages: int) -> Measured:
    """Await `client.produce(...)` for each message."""
    count = setting.count(messages, messages // 20)
    with node_with(setting, TOPIC, PARTITIONS) as node:
        return _cpu(measure(node.metered, "small_produce", address=node.address, messages=count, clients=clients))


def kv_get(setting: Setting, *, clients: int, messages: int) -> Measured:
    """Await `keys.get(...)` for each key."""
    count = setting.count(messages, messages // 20)
    with node_with_keys(setting) as node:
        return _cpu(measure(node.metered, "small_kv_get", address=node.address, messages=count, clients=clients))


def kv_put(setting: Setting, *, clients: int, messages: int) -> Measured:
    """Await `keys.put(...)` for each key."""
    count = setting.count(messages, messages // 20)
    with node_with_keys(setting) as node:
        return _cpu(measure(node.metered, "small_kv_put", address=node.address, messages=count, clients=clients))


def consume(setting: Setting, *, mode: str, messages: int, partitions: int) -> Measured:
    """Consume all due messages with one client."""
    spec = {"messages": setting.count(messages, 4_000), "partitions": partitions, "mode": mode}
    with node_with(setting, TOPIC, partitions, lease=LEASE) as node:
        to = {"address": node.address, "port": node.port, "pid": node.pid}
        return _cpu(measure(node.metered, "small_consume", **to, **spec))


def post(setting: Setting, *, connections: int, size: int, messages: int) -> Measured:
    """Send `POST /topics/{topic}`; count the CPU of the node and of its HTTP process."""
    spec = {"messages": setting.count(messages, messages // 10), "connections": connections, "size": size}
    with node_with(setting, TOPIC, PARTITIONS) as node:
        ((_, http_port),) = node.metered
        return _cpu(measure(node.metered, "small_post", http=f"127.0.0.1:{http_port}", **spec))


def wait(setting: Setting, *, polls: int) -> Measured:
    """Hold long polls without messages; measure the CPU of the node and its processes as a share of a core."""
    polls, seconds = setting.count(polls, 50), setting.count(10, 1)
    waiting = str(2 * polls)  # one address may use three quarters of them
    with node_with(setting, TOPIC, PARTITIONS, node_settings={"LIMITS__HTTP_WAITING": waiting}) as node:
        ((_, http_port),) = node.metered
        with Load("small_wait", http=f"127.0.0.1:{http_port}", polls=polls) as load:
            load.ready()
            meter = Meter(node.metered)
            time.sleep(seconds)
            used_s = meter.cpu_s()
            load.go()
            assert load.result().messages == polls, "some were answered, though there is nothing"
    return Measured(polls, used_s / seconds * 100)


def _row(name: str, what: str, measure: partial[Measured], goal_us: float | None, per_s: float | None = None) -> Row:
    """`per_s`: the goal for the rate."""
    goal = None if goal_us is None else Goal(goal_us, UNIT, at_least=False)
    further = () if per_s is None else (Goal(per_s, PER_S, of=PER_S),)
    return Row(name, "small", what, measure, UNIT, goal, driver="client", further=further)


ROWS = (
    _row("small_produce", "await client.produce(...), one client", partial(produce, clients=1, messages=4_000), 300),
    _row(
        "small_produce_16",
        "await client.produce(...), 16 clients",
        partial(produce, clients=16, messages=32_000),
        70,
        12_000,
    ),
    _row(
        "small_ack",
        "async for message in subscription: await message.ack()",
        partial(consume, mode="message", messages=20_000, partitions=PARTITIONS),
        400,
    ),
    _row(
        "small_run",
        "client.run(topic, group, handler, concurrency=10)",
        partial(consume, mode="workers", messages=40_000, partitions=PARTITIONS),
        60,
        12_000,
    ),
    _row(
        "small_batches",
        "async for batch in subscription.batches(): await batch.ack(), over one partition",
        partial(consume, mode="batch", messages=1_000_000, partitions=1),
        6,
    ),
    _row(
        "small_batches_4",
        f"async for batch in subscription.batches(): await batch.ack(), over {PARTITIONS} partitions",
        partial(consume, mode="batch", messages=1_000_000, partitions=PARTITIONS),
        6,
    ),
    _row("small_get", "await keys.get(...), one client", partial(kv_get, clients=1, messages=4_000), 250),
    _row("small_put", "await keys.put(...), one client", partial(kv_put, clients=1, messages=4_000), None),
    _row(
        "small_post",
        "POST one message, one connection",
        partial(post, connections=1, size=1, messages=1_000),
        300,
    ),
    _row(
        "small_post_32",
        "POST one message, 32 connections",
        partial(post, connections=32, size=1, messages=8_000),
        300,
        5_000,
    ),
    _row(
        "small_post_10",
        "POST 10 messages, 32 connections (for each message)",
        partial(post, connections=32, size=10, messages=64_000),
        50,
        20_000,
    ),
    Row(
        "small_wait",
        "small",
        f"{POLLS:,} long polls over HTTP without messages: CPU",
        partial(wait, polls=POLLS),
        "% of a core",
        driver="none",
    ),
)
