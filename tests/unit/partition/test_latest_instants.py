"""Tests that `apply` raises no error when the clock nears the end of the 48 bits of a timestamp."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from tests.support.partition.bench import Bench, T, by_id, by_key

END = offsets.U48_MAX - T
"""The latest timestamp, in ms after T."""


@pytest.mark.parametrize("at", [END - 1000, END, END + 5000])
def test_every_command_is_answered_near_the_latest_time(at: int) -> None:
    bench = Bench(ttl="1d", dedup_window="7d", ordering="key", max_attempts=2)
    bench.open()
    bench.apply(at, c.Clock())
    for value in "abc":
        bench.put(value, at=at, key=value, unique=value)
    first = bench.one(limit=1, at=at)
    bench.nack(first.token, at=at, delay=END)
    bench.cancel(by_key("b"), at=at)
    bench.move(by_key("c"), 10_000, at=at, relative=True)
    bench.release(at=at)
    for lease in bench.lease(at=at):
        bench.nack(lease.token, at=at)
    bench.extend(first.token, ms=offsets.U48_MAX, at=at)
    bench.apply(at, c.Hold("h", offsets.FIRST, 1000), c.Cancel([by_id(offsets.LAST)]), c.Touch(["g"]), c.Upkeep())
    bench.seek("latest", at=at)
    bench.expire(at=at)
    bench.trim(at=at)
    bench.restart()
    assert bench.status().now_ms <= offsets.U48_MAX
