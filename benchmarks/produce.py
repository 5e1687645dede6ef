"""Measure producing: batches of several sizes, lock-step and pipelined, at a given rate, scheduled; the client's
producer."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks.driver import measure, node_with
from benchmarks.process import confine
from benchmarks.result import Goal, Measured, Row, Setting
from sandq.model.batch import Column, encode
from sandq.protocol.requests import Produce

TOPIC = "bench"
PARTITIONS = 4
VALUE = b"x" * 100
BATCHES = Goal(500_000, "msg/s")
SINGLES = Goal(150_000, "msg/s")
LOCK_STEP = Goal(15_000, "msg/s")
SCHEDULED = Goal(180_000, "msg/s")
HOUR_MS = 3_600_000
MONTH_MS = 30 * 24 * HOUR_MS
_SOON_MS = 60_000
WINDOWS = {1: 1000, 10: 64, 100: 16, 1000: 4}
"""Requests in flight on each connection, by the number of messages per batch."""


def batch_of(
    size: int,
    rng: random.Random | None = None,
    *,
    value: bytes = VALUE,
    within_ms: int = HOUR_MS,
    keyed: bool = False,
) -> bytes:
    """Return `size` messages of 100 bytes. With `rng` each has its own time, a minute or more from now; with `keyed`
    each also has its own key of 8 bytes."""
    columns: dict[int, list[bytes] | list[int]] = {Column.VALUE: [value] * size}
    if keyed:
        columns[Column.KEY] = [b"%08d" % number for number in range(size)]
    if rng is not None:
        first_ms = int(time.time() * 1000) + _SOON_MS
        columns[Column.DELIVER_MS] = [first_ms + int(rng.random() * within_ms) for _ in range(size)]
    return encode(columns)


def frames_of(batches: Sequence[bytes], *partitions: int, topic: str = TOPIC) -> list[bytes]:
    """Return PRODUCE requests, numbered from 1, to the partitions in turn."""
    return [
        Produce(topic, partitions[number % len(partitions)], 0, 0, 0, 0, batch).frame(number)
        for number, batch in enumerate(batches, 1)
    ]


def links(ports: Sequence[int], connections: int, partitions: int) -> list[tuple[int, list[int]]]:
    """Return for each connection its port and its partitions, so that all partitions get their share.

    `ports`: of the leader of each partition, or one for all.
    """
    found = []
    for at in range(connections):
        mine = list(range(at % partitions, partitions, connections))
        found.append((ports[mine[0] % len(ports)], mine))
    return found


def produce(
    connections: int, size: int, batches: int, quick_batches: int, setting: Setting, *, partitions: int = PARTITIONS,
    do: str = "produce", one_core: bool = False, **spec: Any,
) -> Measured:  # fmt: skip
    """Produce `batches` of `size` messages over each of `connections`. `one_core`: the node may use only one core."""
    count = setting.count(batches, quick_batches)
    with node_with(setting, TOPIC, partitions) as node:
        if one_core:
            assert node.pid is not None
            confine(node.pid)
        to = links([node.port], connections, partitions)
        return measure(node.metered, do, links=to, size=size, count=count, **spec)


def client(setting: Setting) -> Measured:
    """Call `Producer.send` in a loop, with one client: the speed of a Python program."""
    messages = setting.count(300_000, 20_000)
    with node_with(setting, TOPIC, PARTITIONS) as node:
        return measure(node.metered, "client_produce", address=node.address, messages=messages)


def _grid() -> list[Row]:
    """Return rows of every size, lock-step and pipelined, over 1 and over 16 connections. Some have names."""
    names = {
        "produce_1000_pipe_16": ("produce_1000", BATCHES),
        "produce_100_pipe_16": ("produce_100", BATCHES),
        "produce_10_pipe_16": ("produce_10", SINGLES),
        "produce_1_lock_16": ("produce_lock_step", LOCK_STEP),
    }
    # batches over each connection, so that a row takes a few seconds
    counts = {
        ("lock", 1): {1000: 1500, 100: 5000, 10: 5000, 1: 5000},
        ("lock", 16): {1000: 150, 100: 1000, 10: 2000, 1: 4000},
        ("pipe", 1): {1000: 2000, 100: 8000, 10: 20_000, 1: 150_000},
        ("pipe", 16): {1000: 200, 100: 1200, 10: 4000, 1: 10_000},
    }
    rows = []
    for connections, mode, size in product((16, 1), ("pipe", "lock"), (1000, 100, 10, 1)):
        name, goal = names.get(f"produce_{size}_{mode}_{connections}", (f"produce_{size}_{mode}_{connections}", None))
        window, count = WINDOWS[size] if mode == "pipe" else 1, counts[mode, connections][size]
        load = partial(produce, connections, size, count, max(10, count // 20), window=window)
        rows.append(Row(name, "produce", _what(size, connections, window), load, goal=goal))
    return rows


def _what(size: int, connections: int, window: int) -> str:
    messages = f"batches of {size} x {len(VALUE)} B" if size > 1 else "single messages"
    way = "one" if window == 1 else f"{window:,}"
    return f"{messages}, {connections} connection{'s' if connections > 1 else ''}, {way} in flight on each"


ROWS = (
    *_grid(),
    Row(
        "produce_lock_step_one_core",
        "produce",
        f"{_what(1, 16, 1)}, the node confined to one core",
        partial(produce, 16, 1, 4000, 200, window=1, one_core=True),
        goal=LOCK_STEP,
    ),
    Row(
        "produce_pipelined",
        "produce",
        _what(1, 4, 1000),
        partial(produce, 4, 1, 75_000, 5000, window=1000),
        goal=SINGLES,
    ),
    Row(
        "produce_scheduled",
        "produce",
        "batches of 1000 x 100 B, 16 connections, each message at its own moment within an hour",
        partial(produce, 16, 1000, 40, 2, window=2, within_ms=HOUR_MS),
        goal=SCHEDULED,
    ),
    Row(
        "produce_paced_1",
        "produce",
        "single messages, 16 connections, 5,000 msg/s whatever the responses",
        partial(produce, 16, 1, 1600, 320, do="produce_paced", per_s=5000),
    ),
    Row(
        "produce_paced_100",
        "produce",
        "batches of 100 x 100 B, 16 connections, 100,000 msg/s whatever the responses",
        partial(produce, 16, 100, 320, 64, do="produce_paced", per_s=100_000),
    ),
    Row("produce_client", "produce", "Producer.send in a loop, one client", client, driver="client"),
)
