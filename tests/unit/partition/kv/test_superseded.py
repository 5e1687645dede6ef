"""Tests that groups of a compacted topic get no superseded write again."""

from __future__ import annotations

import pytest

from sandq.model.batch import Column
from sandq.partition.base import rows
from tests.support.partition.key_bench import KeyBench

MINUTE = 60_000


def bench_of(**settings: object) -> KeyBench:
    bench = KeyBench(max_attempts=3, **settings)
    bench.open()
    return bench


@pytest.mark.parametrize("how", ["nacked", "expired", "released", "redriven"])
@pytest.mark.parametrize("newer", ["new", None])
def test_retry_of_an_overwritten_write_is_skipped(how: str, newer: str | None) -> None:
    bench = bench_of()
    bench.write(("theme", "old"), ("size", "12"))
    lease = bench.one()
    at = 1000
    match how:
        case "nacked":
            bench.nack(lease.token, delay=0)
        case "expired":
            at = bench.settings["lease_ms"] + 2000
            bench.expire(at - 1000)
        case "released":
            bench.release()
        case "redriven":
            bench.reject(lease.token)
            bench.job("redrive", 500)
    bench.set("theme", newer, at=at)
    values = bench.values([one for one in bench.lease(at=at) if one.attempt > 1 or one.total == 1][:1])
    assert values == ["12"]
    assert bench.machine.shared.totals.superseded == 1
    assert bench.status().groups[0].waiting == 0


def test_retry_of_a_kept_write_is_skipped_and_its_row_deleted() -> None:
    bench = bench_of(backoff={"kind": "fixed", "first": "5m", "jitter_percent": 0})
    bench.set("theme", "old")
    bench.nack(bench.one().token)
    bench.trim(2 * MINUTE)
    bench.set("theme", "new", at=3 * MINUTE)
    assert bench.values(bench.lease(at=10 * MINUTE)) == ["new"]
    assert not bench.rows(rows.KEPT)


def test_retry_of_the_latest_write_is_delivered() -> None:
    bench = bench_of()
    bench.write(("theme", "old"), ("theme", "new"), ("size", "12"))
    bench.nack(bench.one().token, delay=0)
    assert bench.values(bench.lease(at=1)) == ["new", "12"]


def test_retry_of_a_deletion_is_delivered_though_the_table_forgot_it() -> None:
    bench = bench_of(history="0s", tombstone_retention="1m")
    bench.set("theme", "old")
    bench.set("theme", None, at=1)
    for lease in bench.lease(at=1):
        bench.nack(lease.token, at=1, delay=MINUTE * 20)
    for minute in range(1, 20):
        bench.trim(minute * MINUTE)
    (lease,) = bench.lease(at=21 * MINUTE)
    assert [message.fields.get(Column.VALUE) for message in bench.messages(lease)] == [None]


def test_lease_that_skips_everything_goes_on_with_the_log() -> None:
    bench = bench_of()
    bench.write(*[("theme", f"v{n}") for n in range(50)])
    bench.nack(bench.one().token, delay=0)
    bench.set("theme", "last", at=1)
    assert bench.values(bench.lease(at=1)) == ["last"]
    assert bench.machine.shared.totals.superseded == 50


def test_write_that_was_never_leased_is_delivered_though_overwritten() -> None:
    bench = bench_of()
    bench.write(("theme", "old"), ("theme", "new"))
    assert bench.values(bench.lease()) == ["old", "new"]
