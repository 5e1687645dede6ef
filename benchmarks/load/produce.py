"""Producing over raw connections: as fast as responses arrive, or at a rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from benchmarks.load.work import Done, Ready
from benchmarks.produce import TOPIC, VALUE, batch_of, frames_of
from benchmarks.result import HANDED, INTENDED, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive, pace
from sandq.model.batch import Column, encode

Links = Sequence[tuple[int, Sequence[int]]]
"""Port and partitions of each connection."""
CHUNK = 1000
"""Number of batches that `many` holds in memory."""
NUMBER_BYTES = 8
"""Size of the number at the start of each value, in bytes, if values are numbered."""


def closed(
    links: Links,
    size: int,
    count: int,
    window: int,
    within_ms: int | None = None,
    value_bytes: int = len(VALUE),
    keyed: bool = False,
) -> Ready:
    """Produce `count` batches over each connection, `window` of them in flight.

    `within_ms`: each message has its own time within this span; `keyed`: and a key.
    """
    rng, value = random.Random(1), b"x" * value_bytes
    flows = []
    for wire, partitions in _connect(links):
        if within_ms is None:
            batches = [batch_of(size, value=value)] * count
        else:
            batches = [batch_of(size, rng, value=value, within_ms=within_ms, keyed=keyed) for _ in range(count)]
        flows.append(Flow(wire, frames_of(batches, *partitions), window))

    def run(began_s: float) -> Done:
        driven = drive(flows)
        result = LoadResult(size * count * len(flows), driven.seconds)
        return Done(result, lambda: Latency.of(HANDED, driven.answer_s))

    return Ready(run)


def paced(links: Links, size: int, count: int, per_s: int, topic: str = TOPIC, numbered: bool = False) -> Ready:
    """Produce `count` batches over each connection in turn, `per_s` messages a second.

    `numbered`: each value begins with the number of its batch, from 0 in the order of sending.
    """
    flows = []
    for at, (wire, partitions) in enumerate(_connect(links, topic, warm=not numbered)):
        if numbered:
            batches = [_numbered(size, at + number * len(links)) for number in range(count)]
        else:
            batches = [batch_of(size)] * count
        flows.append(Flow(wire, frames_of(batches, *partitions, topic=topic), count))

    def run(began_s: float) -> Done:
        ran = pace(flows, per_s / size, began_s)
        return Done(LoadResult(size * count * len(flows), ran.seconds), lambda: Latency.of(INTENDED, ran.late_s()))

    return Ready(run)


def many(links: Links, size: int, count: int, window: int, within_ms: int) -> Ready:
    """Produce like `closed`, but more batches than memory holds. Batches are built between the parts of the load, and
    the time for building does not count."""
    rng = random.Random(1)
    wires = list(_connect(links))

    def run(began_s: float) -> Done:
        seconds, parts = 0.0, []
        for first in range(0, count, max(1, CHUNK // len(wires))):
            more = min(count - first, max(1, CHUNK // len(wires)))
            flows = [
                Flow(wire, frames_of([batch_of(size, rng, within_ms=within_ms) for _ in range(more)], *mine), window)
                for wire, mine in wires
            ]
            driven = drive(flows)
            seconds += driven.seconds
            parts += driven.answer_s
        return Done(LoadResult(size * count * len(wires), seconds), partial(Latency.of, HANDED, parts))

    return Ready(run)


def _numbered(size: int, number: int) -> bytes:
    return encode({Column.VALUE: [number.to_bytes(NUMBER_BYTES, "big") + VALUE[NUMBER_BYTES:]] * size})


def _connect(links: Links, topic: str = TOPIC, *, warm: bool = True) -> list[tuple[Wire, Sequence[int]]]:
    """Open a connection for each of `links`. `warm`: produce one message to each partition first, so that all
    partitions are open."""
    found = []
    for port, partitions in links:
        wire = Wire(port)
        if warm:
            drive([Flow(wire, frames_of([batch_of(1)] * len(partitions), *partitions, topic=topic), 1)])
        found.append((wire, partitions))
    return found
