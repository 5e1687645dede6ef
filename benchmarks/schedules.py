"""Measure schedules: creating them, lateness of their messages, and the cost of very many waiting ones."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.driver import Load, measure, node_with
from benchmarks.pending import stored_bytes
from benchmarks.process import Meter, memory_bytes
from benchmarks.produce import TOPIC
from benchmarks.result import CPU, MAX, Goal, Measured, Row, Setting

CREATE, QUICK_CREATE = 50_000, 2_000
MINUTE, QUICK_MINUTE = 100_000, 2_000
MOMENT, QUICK_MOMENT = 20_000, 1_000
MANY, QUICK_MANY = 1_000_000, 4_000
MINUTE_MS, QUICK_EVERY_MS = 60_000, 10_000
LEASE = "60s"
SETTLE_S = 3.0
_MB = 1_000_000


def _create(setting: Setting) -> Measured:
    with node_with(setting, TOPIC, lease=LEASE) as node:
        return measure(node.metered, "schedules_create", port=node.port, count=setting.count(CREATE, QUICK_CREATE))


def _lateness(count: tuple[int, int], spread: bool, setting: Setting) -> Measured:
    """Receive two occurrences of each schedule; the goal counts the occurrences that were sent."""
    spec = {"count": setting.count(*count), "every_ms": setting.count(MINUTE_MS, QUICK_EVERY_MS), "is_spread": spread}
    with (
        node_with(setting, TOPIC, lease=LEASE) as node,
        Load("schedules_fire", port=node.port, **spec) as load,
    ):
        load.ready()
        meter = Meter(node.metered)
        load.go()
        measured = Measured.of(load.result(), meter.stop())
    assert measured.latency is not None
    measured.value = measured.latency.at(0.99)
    return measured


def _many(setting: Setting) -> Measured:
    """Create very many that are due in a month, let the node settle, measure."""
    count = setting.count(MANY, QUICK_MANY)
    with node_with(setting, TOPIC, lease=LEASE) as node:
        assert node.pid is not None
        empty = memory_bytes(node.pid)
        measured = measure(node.metered, "schedules_create", port=node.port, count=count, is_far=True)
        time.sleep(0.2 if setting.quick else SETTLE_S)
        full = memory_bytes(node.pid)
        measured.details["MB over empty"] = (full["rss"] - empty["rss"]) / _MB
        measured.value = stored_bytes(node.directory) / count
    return measured


ROWS = (
    Row(
        "schedules_create",
        "schedules",
        "created, by requests of 1,000, each with its own expression",
        _create,
        further=(Goal(60, "us of CPU", at_least=False, of=CPU),),
    ),
    Row(
        "schedules_minute",
        "schedules",
        f"{MINUTE:,} spread over a minute, each fires twice",
        partial(_lateness, (MINUTE, QUICK_MINUTE), True),
        "ms p99",
        Goal(50, "ms", at_least=False),
    ),
    Row(
        "schedules_moment",
        "schedules",
        f"{MOMENT:,} at one second, each fires twice",
        partial(_lateness, (MOMENT, QUICK_MOMENT), False),
        "ms p99",
        further=(Goal(3000, "ms, the last", at_least=False, of=MAX),),
    ),
    Row(
        "schedules_1m",
        "schedules",
        f"{MANY:,} that wait for a month: rows on disk",
        _many,
        "bytes each",
        Goal(300, "bytes", at_least=False),
    ),
)
