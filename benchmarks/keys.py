"""Compacted topics: writing, reading, scanning and watching keys, and what is left on the disk of many overwrites."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

import sandq
from benchmarks.cluster import cluster
from benchmarks.process import Where, cpu_s, running
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode
from sandq.protocol.requests import Produce
from sandq.protocol.requests_admin import TopicCreate
from sandq.protocol.requests_keys import ANSWER_BYTES, KvGet, KvScan

TOPIC = "keys"
KEYS = 10_000
VALUE_BYTES = 100
PUTS = Goal(100_000, "puts/s")
GETS = Goal(60_000, "gets/s")
SCANS = Goal(500_000, "keys/s")
LAG = Goal(10, "ms", at_least=False)
DISK = Goal(3, "x the live data", at_least=False)
SETTLE_S = 120.0
"""For compaction to have nothing more to do."""


def puts_of(size: int, count: int, seed: int = 1) -> list[bytes]:
    """PRODUCE requests of random writes to `KEYS` keys."""
    rng = random.Random(seed)
    value = rng.randbytes(VALUE_BYTES // 2) + bytes(VALUE_BYTES - VALUE_BYTES // 2)
    frames = []
    for number in range(1, count + 1):
        keys = [_key(rng.randrange(KEYS)) for _ in range(size)]
        batch = encode({Column.VALUE: [value] * size, Column.KEY: keys})
        frames.append(Produce(TOPIC, 0, 0, 0, 0, 0, batch).frame(number))
    return frames


def _key(number: int) -> bytes:
    return b"key%07d" % number


def _create(wire: Wire, replicas: int = 1, **settings: str) -> None:
    wire.call(TopicCreate(TOPIC, "compacted", 1, replicas, dict(settings)).frame)


def _fill(wire: Wire) -> None:
    """Every key once."""
    frames = []
    for number, first in enumerate(range(0, KEYS, 1000), 1):
        keys = [_key(at) for at in range(first, first + 1000)]
        batch = encode({Column.VALUE: [bytes(VALUE_BYTES)] * 1000, Column.KEY: keys})
        frames.append(Produce(TOPIC, 0, 0, 0, 0, 0, batch).frame(number))
    drive([Flow(wire, frames, 4)])


def _driven(name: str, what: str, goal: Goal, where: Where, flows: Callable[[int], list[Flow]], each: int) -> Result:
    """Requests of `each` operations over raw connections."""
    with running(where, name) as node:
        assert node.pid is not None
        wire = Wire(node.port)
        _create(wire)
        _fill(wire)
        prepared = flows(node.port)
        before_s = cpu_s(node.pid)
        driven = drive(prepared)
        used_s = cpu_s(node.pid) - before_s
        operations = each * sum(len(flow.frames) for flow in prepared)
        for flow in prepared:
            flow.wire.close()
        wire.close()
    result = Result(name, what, "raw", operations, operations / driven.seconds, goal.unit, goal)
    result.cpu_us = used_s * 1e6 / operations
    return result


def put(size: int, window: int, where: Where, quick: bool) -> Result:
    """Writes in batches of `size`."""
    count = max(4, (10_000 if quick else 300_000) // size // 4)
    what = f"batches of {size} x {VALUE_BYTES} B to {KEYS:,} keys, 4 connections, {window} on the way on each"

    def flows(port: int) -> list[Flow]:
        return [Flow(Wire(port), puts_of(size, count, seed), window) for seed in range(4)]

    return _driven(f"kv_put_{size}", what, PUTS, where, flows, size)


def get(size: int, window: int, where: Where, quick: bool) -> Result:
    """Linearizable reads, `size` keys a request."""
    count = max(4, (10_000 if quick else 200_000) // size // 4)
    what = f"{size} keys a request, 4 connections, {window} on the way on each"
    rng = random.Random(2)

    def flows(port: int) -> list[Flow]:
        return [
            Flow(
                Wire(port),
                [
                    KvGet(TOPIC, 0, False, [_key(rng.randrange(KEYS)) for _ in range(size)]).frame(number)
                    for number in range(1, count + 1)
                ],
                window,
            )
            for _ in range(4)
        ]

    return _driven(f"kv_get_{size}", what, GETS, where, flows, size)


def scan(where: Where, quick: bool) -> Result:
    """All keys again and again, in pages of 1,000 with their values."""
    rounds = 2 if quick else 50
    page = 1000

    def flows(port: int) -> list[Flow]:
        frames = [
            KvScan(TOPIC, 0, False, _key(at), _key(at + page), page, ANSWER_BYTES).frame(number)
            for number, at in enumerate(list(range(0, KEYS, page)) * rounds, 1)
        ]
        return [Flow(Wire(port), frames, 2) for _ in range(2)]

    what = "pages of 1,000 with values, 2 connections, two pages on the way on each"
    return _driven("kv_scan", what, SCANS, where, flows, page)


def client(kind: str, where: Where, quick: bool) -> Result:
    """What a Python program gets of `put_many`, `get_many` and `scan`."""
    rounds = 2 if quick else 20
    keys = [_key(at) for at in range(KEYS)]
    with running(where, f"kv_client_{kind}") as node:
        pid = node.pid
        assert pid is not None

        async def run() -> tuple[float, float]:
            async with sandq.connect(node.address) as api:
                await api.admin.create_topic(TOPIC, kind="compacted")
                kv = api.kv(TOPIC)
                await kv.put_many([(key, bytes(VALUE_BYTES)) for key in keys])
                before_s, began = cpu_s(pid), time.perf_counter()
                for _ in range(rounds):
                    if kind == "put":
                        await kv.put_many([(key, bytes(VALUE_BYTES)) for key in keys])
                    elif kind == "get":
                        assert None not in await kv.get_many(keys)
                    else:
                        assert len([entry async for entry in kv.scan()]) == KEYS
                return time.perf_counter() - began, cpu_s(pid) - before_s

        seconds, used_s = anyio.run(run, backend="trio")
    goal = {"put": PUTS, "get": GETS, "scan": SCANS}[kind]
    done = rounds * KEYS
    call = {"put": "put_many", "get": "get_many", "scan": "scan"}[kind]
    result = Result(f"kv_client_{kind}", f"{call} of {KEYS:,}", "client", done, done / seconds, goal.unit, goal)
    result.cpu_us = used_s * 1e6 / done
    return result


def watch(replicas: int, where: Where, quick: bool) -> Result:
    """From the moment a put is begun until who watches has it; 200 a second, one client writes and another watches."""
    changes = 100 if quick else 2000
    name = "kv_watch" if replicas == 1 else f"kv_watch_{replicas}"
    if replicas == 1:
        with running(where, name) as node:
            late = anyio.run(partial(_lags, [node.address], changes, replicas), backend="trio")
    else:
        with cluster(where) as nodes:
            nodes.form("warm")
            late = anyio.run(partial(_lags, nodes.addresses, changes, replicas), backend="trio")
    late.sort()
    p99 = late[max(0, -(-len(late) * 99 // 100) - 1)]
    what = f"put begun until seen, 200 a second, {replicas} replica{'s' if replicas > 1 else ''}"
    result = Result(name, what, "client", changes, p99, "ms p99", LAG)
    result.details = {"p50 ms": late[len(late) // 2], "max ms": late[-1]}
    return result


async def _lags(addresses: Sequence[str], changes: int, replicas: int) -> list[float]:
    late: list[float] = []
    async with sandq.connect(*addresses) as writer, sandq.connect(*addresses) as reader:
        await writer.admin.create_topic(TOPIC, kind="compacted", replicas=replicas)
        kv = writer.kv(TOPIC)
        async with reader.kv(TOPIC).watch() as changed, anyio.create_task_group() as tasks:
            tasks.start_soon(_put_evenly, kv, changes)
            async for change in changed:
                assert change.value is not None
                late.append((time.monotonic() - float(change.value)) * 1000)
                if len(late) == changes:
                    break
    return late


async def _put_evenly(kv: sandq.Keys, changes: int) -> None:
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for at in range(changes):
            await anyio.sleep(max(0.0, began + at / 200 - time.monotonic()))
            tasks.start_soon(kv.put, _key(at % 100), repr(time.monotonic()))


def disk(where: Where, quick: bool) -> Result:
    """What `stores.level` holds once compaction has nothing more to do; the write-ahead log is not counted."""
    overwrites = 200_000 if quick else 10_000_000
    size = 1000
    with running(where, "kv_disk") as node:
        assert node.pid is not None
        wire = Wire(node.port)
        _create(wire, history="0s")
        _fill(wire)
        frames = puts_of(size, min(200, overwrites // size))
        before_s, began = cpu_s(node.pid), time.perf_counter()
        for _ in range(overwrites // size // len(frames)):
            drive([Flow(wire, frames, 8)])
        seconds, used_s = time.perf_counter() - began, cpu_s(node.pid) - before_s
        store = node.directory / "data" / "stores.level"
        live = KEYS * (VALUE_BYTES + len(_key(0)))
        most_bytes, least_bytes = _size(store), _settled(store, 20.0 if quick else SETTLE_S)
        wire.close()
    what = f"{overwrites:,} overwrites of {KEYS:,} keys in batches of {size}, then until compaction is idle"
    result = Result("kv_disk", what, "raw", overwrites, least_bytes / live, DISK.unit, DISK)
    result.cpu_us = used_s * 1e6 / overwrites
    result.details = {
        "puts/s": overwrites / seconds,
        "MB right after": most_bytes / 1e6,
        "MB in the end": least_bytes / 1e6,
    }
    return result


def _settled(store: Path, most_s: float) -> int:
    """The size once it has not changed for 10 seconds."""
    until, size, since = time.perf_counter() + most_s, _size(store), time.perf_counter()
    while time.perf_counter() < until and time.perf_counter() - since < 10:
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
                continue  # LevelDB replaces its files
    return total
