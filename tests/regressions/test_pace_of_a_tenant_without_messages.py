"""A tenant whose last ready message was taken back is decided about alike on a living and on a restarted replica."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from tests.support.partition.bench import DEFAULTS, Bench
from tests.support.partition.ranked_bench import RankedBench


def configure(bench: Bench, rule: dict[str, Any], at: int) -> None:
    record = parse_settings(DEFAULTS | {"tenants": {"*": rule}}, "fair").record()
    assert bench.apply(at, c.Configure(record)) == [None]


def rows_of(*, restarts: bool, is_moved: bool) -> list[tuple[bytes, bytes]]:
    """Return all rows after a tenant lost its last message, and its rate was raised."""
    bench = RankedBench("fair", tenants={"*": {"rate": "30/m"}})
    bench.open()
    _, second = bench.add("first", "second", tenant="a")
    assert bench.take() == ["first"]
    bench.restarts = restarts
    configure(bench, {"rate": "2/s", "burst": 2}, at=1)
    if is_moved:
        assert bench.move(second, 60_000, at=1).word == "moved"
    else:
        assert bench.cancel(second, at=1).word == "cancelled"
    assert bench.lease(at=1) == []
    return bench.everything()


@pytest.mark.parametrize("is_moved", [False, True])
def test_pace_of_a_tenant_without_messages_is_the_same_after_a_restart(*, is_moved: bool) -> None:
    assert rows_of(restarts=False, is_moved=is_moved) == rows_of(restarts=True, is_moved=is_moved)
