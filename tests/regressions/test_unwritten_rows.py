"""The behavior of a partition must not depend on which of its rows are written, nor on whether it was just loaded."""

from __future__ import annotations

import random

import pytest

from sandq.model import offsets
from sandq.model.errors import InvalidRequest
from sandq.partition import commands as c
from sandq.partition.base.rows import LOG_HEADER
from sandq.partition.base.view import View
from sandq.partition.jobs.jobs import FINISHED_JOBS, OWN_IDS
from sandq.partition.leasing.lease_grants import LEASE_BYTES
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import Bench, T, batch_of, by_id

EVERYTHING = {"from_ms": 0, "until_ms": offsets.U48_MAX, "dry_run": False}


@pytest.mark.parametrize("seed", range(200))
def test_scan_with_unwritten_changes_equals_written_rows(seed: int) -> None:
    """Deleted rows used up `max_bytes`, and the scan ended early."""
    rng = random.Random(seed)
    keys = [b"m%03d" % at for at in range(40)]
    stores = MemoryStores()
    stores.write([(key, rng.randbytes(rng.choice((1, 20, 200)))) for key in keys if rng.random() < 0.8])
    written = MemoryStores()
    written.write(stores.scan(b"m", b"n", limit=100, max_bytes=1 << 20))
    view = View(stores)
    for key in rng.sample(keys, rng.randint(0, 40)):
        if rng.random() < 0.7:
            view.delete(key)
            written.write([(key, None)])
        else:
            value = rng.randbytes(rng.choice((1, 20, 200)))
            view.put(key, value)
            written.write([(key, value)])
    for _ in range(20):
        start, stop = sorted(rng.sample([b"m", *keys, b"n"], 2))
        how = {
            "limit": rng.randint(1, 45),
            "max_bytes": rng.choice((1, 50, 300, 1 << 20)),
            "reverse": rng.random() < 0.5,
        }
        assert view.scan(start, stop, **how) == written.scan(start, stop, **how), how


def test_cancel_after_many_deleted_rows_finds_batch() -> None:
    """The row of a batch was not found after a mebibyte of rows that were deleted and not yet written."""
    bench = Bench()
    bench.open()
    large = c.Append(batch_of(["v" * 3900] * 330, unique=[f"u{at}" for at in range(330)]), split=True)
    small = c.Append(batch_of([f"m{at}" for at in range(10)]))
    stored, (base, _) = bench.apply(0, large, small)
    ids = [stored.offsets[at * 16 : at * 16 + 16] for at in range(5, 330)]
    fifth = offsets.shift(base, 5)
    outcomes = bench.apply(1, c.Cancel([by_id(one) for one in ids]), c.Cancel([by_id(fifth)]))
    assert outcomes[1] == [("cancelled", fifth)]
    taken = bench.values(bench.lease(limit=1000, at=3))
    assert [value for value in taken if value.startswith("m")] == [f"m{at}" for at in range(10) if at != 5]


@pytest.mark.parametrize("restart", (False, True))
def test_size_of_partial_batch_is_same_after_restart(restart: bool) -> None:
    """The size was rounded differently in memory and after a load, so a lease limited by bytes had other messages."""
    bench = Bench()
    bench.open()
    first = ["a" * 404, *["b" * 30] * 10]
    size = len(batch_of(first)) + LOG_HEADER.size
    bench.append(*first)
    bench.one(limit=1)
    left = LEASE_BYTES - 10 * (size // 11)
    while left > 0:
        bench.append("x" * min(left, 1 << 20))
        left -= min(left, 1 << 20)
    bench.append(*[f"next {at}" for at in range(500)])
    if restart:
        bench.restart()
    head = bench.machine.groups.named("g").reader.head(bench.view)
    assert head is not None
    assert (head.length, head.size) == (10, 10 * (size // 11))


@pytest.mark.parametrize("restart", (False, True))
def test_order_of_copied_messages_is_same_after_restart(restart: bool) -> None:
    """In memory, waiting messages were in the order in which they were stored; after a load, by their due time."""
    bench = Bench(max_attempts=10)
    bench.open()
    bench.append(*[f"m{at}" for at in range(1800)])
    leases = [bench.one(limit=600) for _ in range(3)]
    for lease, delay in zip(leases, (60_030, 60_020, 60_010), strict=True):
        bench.nack(lease.token, at=1, delay=delay)
    bench.trim(2)
    if restart:
        bench.restart()
    _, granted = bench.apply(60_050, c.Upkeep(), c.Lease("g", T + 60_050, [c.Grant("c", 1000, 30_000)]))
    assert bench.values(granted[:1]) == [f"m{at}" for at in range(1200, 1800)]


def test_two_seeks_in_one_entry_end() -> None:
    """The second seek met the finished job of the first one, and the group waited for it for ever."""
    bench = Bench(max_attempts=1)
    bench.open()
    bench.append("dead")
    bench.nack(bench.one().token)
    bench.apply(1, c.Seek("g", "latest"), c.Upkeep(), c.Seek("g", "latest"))
    bench.trim(at=2)
    bench.append("new", at=3)
    assert bench.values(bench.lease(at=3)) == ["new"]


def test_job_with_reserved_id_is_rejected() -> None:
    refusal = Bench().apply(0, c.StartJob(OWN_IDS.ljust(16), "cancel", EVERYTHING | {"key_prefix": None}))[0]
    assert isinstance(refusal, InvalidRequest)


def test_long_job_is_kept_when_it_ends() -> None:
    """The partition kept the jobs that began last, not those that ended last. So a long job vanished when it ended."""
    bench = Bench(max_attempts=1)
    bench.open()
    for at in range(3):
        bench.append(f"m{at}")
    for lease in bench.lease(limit=3):
        bench.nack(lease.token)
    arguments = EVERYTHING | {"group": "g", "reason": None, "rate": 1}
    bench.apply(1, c.StartJob(b"slow".ljust(16), "redrive", arguments))
    for at in range(FINISHED_JOBS + 1):
        bench.apply(1, c.StartJob(b"%016d" % at, "cancel", EVERYTHING | {"key_prefix": None}))
        bench.trim(at=1)
    bench.trim(at=10_000)
    assert bench.machine.jobs.find(b"slow".ljust(16)).shown()["done"] == 3


def test_slow_redrive_checks_many_messages_per_entry() -> None:
    """The rate limited the checked messages instead of the redriven ones, so each dead message needed an entry."""
    bench = Bench(max_attempts=1)
    bench.open()
    bench.append(*[f"m{at}" for at in range(900)])
    bench.nack(bench.one(limit=900).token)
    arguments = EVERYTHING | {"group": "g", "reason": "expired", "rate": 1}
    bench.apply(1, c.StartJob(bytes(16), "redrive", arguments))
    before = bench.index
    bench.trim(at=1)
    assert bench.index - before < 5


def test_expired_messages_per_entry_are_limited_by_bytes() -> None:
    """An entry wrote up to ten thousand messages of any size."""
    bench = Bench(ttl="1s")
    bench.open()
    for _ in range(12):
        bench.append("x" * (1 << 20))
    assert 8 <= bench.expire(at=5000) <= 9
    assert bench.expire(at=5000) <= 4
