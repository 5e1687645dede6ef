"""Compacted topics: reading and writing keys over raw connections, and with the Python client."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import anyio
import anyio.abc

import sandq
from benchmarks.load.work import Done, Ready
from benchmarks.result import HANDED, INTENDED, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode
from sandq.protocol.requests import Produce
from sandq.protocol.requests_keys import ANSWER_BYTES, KvGet, KvScan

TOPIC = "keys"
KEYS = 10_000
VALUE_BYTES = 100
FILL = 1000
SCAN_CONNECTIONS = 2
WATCHED_PER_S = 200


def key_of(number: int) -> bytes:
    return b"key%07d" % number


def put(port: int, connections: int, size: int, count: int, window: int, again: int = 1) -> Ready:
    """Write random keys in batches of `size`. `again`: number of times that the same batches are written."""
    wires = [_filled(port)] + [Wire(port) for _ in range(connections - 1)]
    frames = [_puts(size, count, seed) for seed in range(connections)]

    def run(began_s: float) -> Done:
        driven = [
            drive([Flow(wire, mine, window) for wire, mine in zip(wires, frames, strict=True)]) for _ in range(again)
        ]
        result = LoadResult(size * count * connections * again, time.perf_counter() - began_s)
        return Done(result, lambda: Latency.of(HANDED, (taken_s for one in driven for taken_s in one.answer_s)))

    return Ready(run)


def get(port: int, connections: int, size: int, count: int, window: int) -> Ready:
    """Read keys linearizably, `size` per request."""
    rng = random.Random(2)
    wires = [_filled(port)] + [Wire(port) for _ in range(connections - 1)]
    flows = [
        Flow(
            wire,
            [
                KvGet(TOPIC, 0, False, [key_of(rng.randrange(KEYS)) for _ in range(size)]).frame(number)
                for number in range(1, count + 1)
            ],
            window,
        )
        for wire in wires
    ]
    return _driven(flows, size)


def scan(port: int, page: int, rounds: int, window: int) -> Ready:
    """Scan all keys repeatedly, with their values."""
    frames = [
        KvScan(TOPIC, 0, False, key_of(at), key_of(at + page), page, ANSWER_BYTES).frame(number)
        for number, at in enumerate(list(range(0, KEYS, page)) * rounds, 1)
    ]
    wires = [_filled(port)] + [Wire(port) for _ in range(SCAN_CONNECTIONS - 1)]
    return _driven([Flow(wire, frames, window) for wire in wires], page)


def client(address: str, port: int, kind: str, rounds: int) -> Ready:
    """Call `put_many`, `get_many` or `scan` for all keys."""
    _filled(port).close()
    keys = [key_of(at) for at in range(KEYS)]
    rows = [(key, bytes(VALUE_BYTES)) for key in keys]

    async def loop() -> float:
        async with sandq.connect(address) as api:
            kv = api.kv(TOPIC)
            began_s = time.perf_counter()
            for _ in range(rounds):
                if kind == "put":
                    await kv.put_many(rows)
                elif kind == "get":
                    assert None not in await kv.get_many(keys)
                else:
                    assert len([entry async for entry in kv.scan()]) == KEYS
            return time.perf_counter() - began_s

    def run(began_s: float) -> Done:
        return Done(LoadResult(rounds * KEYS, anyio.run(loop, backend="trio")))

    return Ready(run)


def watch(addresses: Sequence[str], changes: int) -> Ready:
    """Time from the planned put until a watcher has the change; one client writes, another watches."""

    async def loop() -> tuple[float, list[float]]:
        late_s: list[float] = []
        async with (
            sandq.connect(*addresses) as writer,
            sandq.connect(*addresses) as reader,
            reader.kv(TOPIC).watch() as changed,
            anyio.create_task_group() as tasks,
        ):
            began_s = time.perf_counter()
            tasks.start_soon(_put_evenly, writer.kv(TOPIC), changes, tasks)
            async for change in changed:
                assert change.value is not None
                late_s.append(time.perf_counter() - float(change.value))
                if len(late_s) == changes:
                    break
        return time.perf_counter() - began_s, late_s

    def run(began_s: float) -> Done:
        seconds, late_s = anyio.run(loop, backend="trio")
        return Done(LoadResult(changes, seconds), lambda: Latency.of(INTENDED, late_s))

    return Ready(run)


async def _put_evenly(kv: sandq.Keys, changes: int, tasks: anyio.abc.TaskGroup) -> None:
    began_s = time.perf_counter()
    for at in range(changes):
        intended_s = began_s + at / WATCHED_PER_S
        await anyio.sleep(max(0.0, intended_s - time.perf_counter()))
        tasks.start_soon(kv.put, key_of(at % 100), repr(intended_s))


def _puts(size: int, count: int, seed: int) -> list[bytes]:
    """Return PRODUCE requests of random writes to `KEYS` keys."""
    rng = random.Random(seed)
    value = rng.randbytes(VALUE_BYTES // 2) + bytes(VALUE_BYTES - VALUE_BYTES // 2)
    frames = []
    for number in range(1, count + 1):
        keys = [key_of(rng.randrange(KEYS)) for _ in range(size)]
        batch = encode({Column.VALUE: [value] * size, Column.KEY: keys})
        frames.append(Produce(TOPIC, 0, 0, 0, 0, 0, batch).frame(number))
    return frames


def _filled(port: int) -> Wire:
    """A connection over which every key was written once."""
    frames = []
    for number, first in enumerate(range(0, KEYS, FILL), 1):
        keys = [key_of(at) for at in range(first, first + FILL)]
        batch = encode({Column.VALUE: [bytes(VALUE_BYTES)] * FILL, Column.KEY: keys})
        frames.append(Produce(TOPIC, 0, 0, 0, 0, 0, batch).frame(number))
    wire = Wire(port)
    drive([Flow(wire, frames, 4)])
    return wire


def _driven(flows: Sequence[Flow], each: int) -> Ready:
    """Return requests of `each` operations."""

    def run(began_s: float) -> Done:
        driven = drive(flows)
        result = LoadResult(each * sum(len(flow.frames) for flow in flows), driven.seconds)
        return Done(result, lambda: Latency.of(HANDED, driven.answer_s))

    return Ready(run)
