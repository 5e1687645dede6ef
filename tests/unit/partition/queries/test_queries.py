"""Tests of pages of messages that groups hold."""

from __future__ import annotations

import pytest

from sandq.model.errors import UnknownGroup
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.shared_state import SLICE_ITEMS
from tests.support.partition.bench import Bench, T
from tests.support.partition.key_bench import KeyBench

HOUR = 3_600_000
ALL_TIMES = (0, 1 << 47)


def held(bench: KeyBench, state: str) -> list[tuple[bytes, bytes]]:
    page, following = PartitionQueries(bench.machine, bench.view).page(state, *ALL_TIMES, None, 100, None, True)
    assert following is None
    return [(one["offset"], one["value"]) for one in page]


def test_consumers_are_listed_with_the_messages_that_they_hold() -> None:
    bench = Bench()
    bench.open()
    for _ in range(6):
        bench.put("x")
    (first,) = bench.lease(limit=2, at=1, consumer="ada")
    bench.lease(limit=1, at=2, consumer="ada")
    (other,) = bench.lease(limit=2, at=3, consumer="bob")
    queries = PartitionQueries(bench.machine, bench.view)
    assert queries.held_by_consumer("g") == {"ada": (3, T + 1), "bob": (2, T + 3)}
    bench.ack(first.token, at=4)
    bench.nack(other.token, at=4, delay=60_000)
    assert queries.held_by_consumer("g") == {"ada": (1, T + 2)}
    with pytest.raises(UnknownGroup):
        queries.held_by_consumer("nobody")


def test_long_page_yields_to_other_partitions() -> None:
    bench = KeyBench()
    for number in range(3 * SLICE_ITEMS):
        bench.set(f"{number}", "1")
    yielded: list[bool] = []
    bench.machine.shared.yield_now = lambda: yielded.append(True)
    page, _ = PartitionQueries(bench.machine, bench.view).page(None, *ALL_TIMES, None, 1000, None, True)
    assert len(page) == 3 * SLICE_ITEMS
    assert len(yielded) == 3 + 2, "the query also yields before each read"
