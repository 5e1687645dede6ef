"""Measure compacted topics: writing, reading, scanning and watching keys, and disk use after many overwrites."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cluster import cluster
from benchmarks.driver import measure
from benchmarks.load.keys import KEYS, TOPIC, VALUE_BYTES, key_of
from benchmarks.process import MeteredNode, running
from benchmarks.result import Goal, Measured, Row, Setting
from benchmarks.wire import Wire
from sandq.protocol.requests_admin import TopicCreate

PUTS = Goal(100_000, "puts/s")
GETS = Goal(60_000, "gets/s")
SCANS = Goal(500_000, "keys/s")
LAG = Goal(10, "ms", at_least=False)
DISK = Goal(3, "x the live data", at_least=False)
CONNECTIONS = 4
PAGE = 1000
OVERWRITES = 10_000_000
OVERWRITE_BATCH = 1000
SETTLE_S = 120.0
"""Time limit until compaction has nothing more to do."""
STILL_S = 10.0


@contextlib.contextmanager
def node_with_keys(setting: Setting, **settings: str) -> Iterator[MeteredNode]:
    """A new node with a compacted topic."""
    with running(setting.where, setting.name) as node:
        wire = Wire(node.port)
        wire.call(TopicCreate(TOPIC, "compacted", 1, 1, dict(settings)).frame)
        wire.close()
        yield node


def operate(do: str, size: int, window: int, operations: int, setting: Setting) -> Measured:
    """Put or get keys over raw connections, `size` per request."""
    count = max(4, setting.count(operations, 10_000) // size // CONNECTIONS)
    with node_with_keys(setting) as node:
        return measure(node.metered, do, port=node.port, connections=CONNECTIONS, size=size, count=count, window=window)


def scan(setting: Setting) -> Measured:
    """Scan all keys repeatedly."""
    with node_with_keys(setting) as node:
        return measure(node.metered, "kv_scan", port=node.port, page=PAGE, rounds=setting.count(50, 2), window=2)


def client(kind: str, setting: Setting) -> Measured:
    """Use `put_many`, `get_many` and `scan` of the Python client."""
    with node_with_keys(setting) as node:
        return measure(
            node.metered, "kv_client", address=node.address, port=node.port, kind=kind, rounds=setting.count(20, 2)
        )


def watch(replicas: int, setting: Setting) -> Measured:
    """Return p99 of the time from the planned put until a watcher has the change."""
    spec: dict[str, Any] = {"changes": setting.count(2000, 100)}
    if replicas == 1:
        with node_with_keys(setting) as node:
            measured = measure(node.metered, "kv_watch", addresses=[node.address], **spec)
    else:
        with cluster(setting) as nodes:
            nodes.form(TOPIC, replicas=replicas, kind="compacted")
            measured = measure(nodes.metered, "kv_watch", addresses=nodes.addresses, **spec)
    assert measured.latency is not None
    measured.value = measured.latency.at(0.99)
    return measured


def disk(setting: Setting) -> Measured:
    """Return the size of `stores.level` once compaction has nothing more to do; the write-ahead log is not counted."""
    batches = setting.count(OVERWRITES, 200_000) // OVERWRITE_BATCH
    count = min(200, batches)
    with node_with_keys(setting, history="0s") as node:
        measured = measure(
            node.metered, "kv_put", port=node.port, connections=1, size=OVERWRITE_BATCH, count=count, window=8,
            again=batches // count,
        )  # fmt: skip
        store = node.directory / "data" / "stores.level"
        live = KEYS * (VALUE_BYTES + len(key_of(0)))
        most_bytes, least_bytes = _size(store), _settled(store, 20.0 if setting.quick else SETTLE_S)
    measured.details = {
        "puts/s": measured.value,
        "MB right after": most_bytes / 1e6,
        "MB in the end": least_bytes / 1e6,
    }
    measured.value = least_bytes / live
    return measured


def _settled(store: Path, most_s: float) -> int:
    """Return the size once it has not changed for `STILL_S`."""
    until, size, since = time.perf_counter() + most_s, _size(store), time.perf_counter()
    while time.perf_counter() < until and time.perf_counter() - since < STILL_S:
        time.sleep(0.5)
        now = _size(store)
        if now != size:
            size, since = now, time.perf_counter()
    return size


def _size(store: Path) -> int:
    total = 0
    for directory, _, names in os.walk(store):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_size
            except FileNotFoundError:
                continue  # LevelDB replaces its files meanwhile
    return total


def _window_text(window: int) -> str:
    return f"{CONNECTIONS} connections, {window} in flight on each"


ROWS = (
    *(
        Row(
            f"kv_put_{size}",
            "keys",
            f"batches of {size} x {VALUE_BYTES} B to {KEYS:,} keys, {_window_text(window)}",
            partial(operate, "kv_put", size, window, 300_000),
            PUTS.unit,
            PUTS,
        )
        for size, window in ((100, 16), (1, 1000))
    ),
    *(
        Row(
            f"kv_get_{size}",
            "keys",
            f"{size} key{'s' if size > 1 else ''} a request, {_window_text(window)}",
            partial(operate, "kv_get", size, window, 200_000),
            GETS.unit,
            GETS,
        )
        for size, window in ((100, 16), (1, 250))
    ),
    Row(
        "kv_scan",
        "keys",
        f"pages of {PAGE:,} with values, 2 connections, two pages in flight on each",
        scan,
        SCANS.unit,
        SCANS,
    ),
    *(
        Row(f"kv_client_{kind}", "keys", f"{call} of {KEYS:,}", partial(client, kind), goal.unit, goal, "client")
        for kind, call, goal in (("put", "put_many", PUTS), ("get", "get_many", GETS), ("scan", "scan", SCANS))
    ),
    *(
        Row(
            "kv_watch" if replicas == 1 else f"kv_watch_{replicas}",
            "keys",
            f"a put until it is seen, 200 a second, {replicas} replica{'s' if replicas > 1 else ''}",
            partial(watch, replicas),
            "ms p99",
            LAG,
            "client",
        )
        for replicas in (1, 3)
    ),
    Row(
        "kv_disk",
        "keys",
        f"{OVERWRITES:,} overwrites of {KEYS:,} keys in batches of {OVERWRITE_BATCH}, then until compaction is idle",
        disk,
        "x the live data",
        DISK,
    ),
)
