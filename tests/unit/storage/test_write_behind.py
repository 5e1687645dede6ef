"""Tests of write-behind: submitted rows are read as if they were written, and are written in order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandq.model.errors import StorageFailed
from sandq.storage.keys import store_prefix
from sandq.storage.stores import Change, MemoryStores
from sandq.storage.write_behind import BATCH_BYTES, ROW_BYTES, STORE_SHARE, WriteBehindStores
from tests.support.stalling_stores import PATIENCE_S, StallingStores

ONE, TWO, THREE = (store_prefix(number) for number in (1, 2, 3))
LIMIT = 8 << 20


def some_changes(rng: random.Random) -> list[Change]:
    def change() -> Change:
        key = rng.choice((ONE, TWO)) + bytes([rng.randrange(12)])
        return key, None if rng.random() < 0.4 else rng.randbytes(rng.choice((0, 1, 3)))

    return [change() for _ in range(rng.randrange(6))]


def some_range(rng: random.Random) -> tuple[bytes, bytes]:
    start, stop = sorted(rng.choice((ONE, TWO)) + bytes([rng.randrange(13)]) for _ in range(2))
    return start, stop


@pytest.mark.parametrize("seed", range(40))
def test_reader_sees_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    written, stores = MemoryStores(), WriteBehindStores(MemoryStores(), LIMIT)
    snapshots = []
    for _ in range(60):
        changes = some_changes(rng)
        written.write(changes)
        stores.write(changes)
        if rng.random() < 0.3:
            stores.write_one()
        if rng.random() < 0.1:
            snapshots.append((written.snapshot(), stores.snapshot()))
        start, stop = some_range(rng)
        asked = {"limit": rng.choice([None, 0, 1, 3]), "max_bytes": rng.choice([None, 0, 1, 4])}
        for reverse in (False, True):
            expected = written.scan(start, stop, reverse=reverse, **asked)
            assert stores.scan(start, stop, reverse=reverse, **asked) == expected
        assert stores.get(start) == written.get(start)
        ranges = sorted(some_range(rng) for _ in range(3))
        assert stores.vacant(ranges) == written.vacant(ranges)
        for as_written, as_seen in snapshots:
            assert as_seen.scan(start, stop, **asked) == as_written.scan(start, stop, **asked)
    stores.write_out()
    assert stores.progress is None and stores.bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_written_rows_are_a_prefix_of_submitted_changes(seed: int) -> None:
    rng = random.Random(seed)
    below = MemoryStores()
    stores = WriteBehindStores(below, LIMIT)
    states, so_far = [[]], MemoryStores()
    for _ in range(30):
        changes = some_changes(rng)
        stores.write(changes)
        so_far.write(changes)
        states.append(so_far.scan(ONE, THREE))
        if rng.random() < 0.3:
            stores.write_one()
        found = below.scan(ONE, THREE)
        assert found in states, "rows of one batch were not written together or not in order"
        states = states[states.index(found) :]


def test_small_changes_that_wait_are_written_together() -> None:
    below = MemoryStores()
    stores = WriteBehindStores(below, LIMIT)
    for number in range(100):
        stores.write([(ONE + b"state", b"%d" % number), (ONE + b"%03d" % number, b"")])
    stores.write_one()
    assert below.get(ONE + b"state") == b"99" and stores.progress is None
    large = BATCH_BYTES // 2
    for number in range(3):
        stores.write([(ONE + b"large%d" % number, bytes(large))])
    stores.write_one()
    assert below.get(ONE + b"large0") is not None and below.get(ONE + b"large1") is None


def test_rows_submitted_during_a_write_wait_for_the_next_one() -> None:
    below = StallingStores()
    stores = WriteBehindStores(below, LIMIT)
    below.stall()
    stores.write([(ONE + b"a", b"1")])
    with written_by_a_thread(stores, below):
        assert below.has_stalled.wait(PATIENCE_S)
        stores.write([(ONE + b"a", b"2"), (ONE + b"b", b"2")])
        assert (stores.get(ONE + b"a"), below.get(ONE + b"a")) == (b"2", None)
        assert stores.scan(ONE, TWO) == [(ONE + b"a", b"2"), (ONE + b"b", b"2")]
        progress = stores.progress
        assert progress is not None, "rows wait to be written"
    assert below.scan(ONE, TWO) == [(ONE + b"a", b"1")]
    stores.write_one()
    assert below.scan(ONE, TWO) == [(ONE + b"a", b"2"), (ONE + b"b", b"2")]
    assert stores.progress is None


def test_flush_writes_submitted_rows() -> None:
    below = MemoryStores()
    stores = WriteBehindStores(below, LIMIT)
    stores.write([(ONE + b"a", b"1")])
    stores.flush()
    assert below.after(0).get(ONE + b"a") == b"1"
    stores.write([(ONE + b"b", b"1")])
    stores.compact(ONE, TWO)
    assert below.get(ONE + b"b") == b"1", "the rows to compact must be written"


def test_a_failed_write_is_the_last_one() -> None:
    below = StallingStores()
    stores = WriteBehindStores(below, LIMIT)
    below.error = StorageFailed("the disk fails")
    stores.write([(ONE + b"a", b"1")])
    with pytest.raises(StorageFailed, match="the disk fails"):
        stores.write_one()
    below.error = None
    for call in (stores.write_out, stores.flush, stores.write_one, lambda: stores.write([(ONE + b"b", b"1")])):
        with pytest.raises(StorageFailed, match="the disk fails"):
            call()
    assert stores.get(ONE + b"a") == b"1", "reads must continue"
    assert not below.scan(ONE, TWO)


def test_bytes_per_store_and_in_total_are_limited() -> None:
    stores = WriteBehindStores(MemoryStores(), LIMIT)
    share = int(STORE_SHARE * LIMIT)
    assert stores.takes(ONE) and stores.takes(ONE, share - 1)
    assert not stores.takes(ONE, share), "pending rows count"
    stores.write([(ONE + b"a", bytes(share - 2 * ROW_BYTES))])
    assert stores.takes(ONE) and not stores.takes(ONE, 2 * ROW_BYTES)
    stores.write([(ONE + b"b", bytes(2 * ROW_BYTES))])
    assert not stores.takes(ONE) and stores.takes(TWO), "other stores do not wait"
    stores.write([(TWO + b"a", bytes(share - 2 * ROW_BYTES))])
    stores.write([(THREE + b"a", bytes(2 * ROW_BYTES))])
    assert stores.bytes >= LIMIT and stores.is_half_full
    assert [stores.takes(store) for store in (ONE, TWO, THREE)] == [False, False, True]
    assert not stores.takes(THREE, LIMIT // 3), "each store gets an equal part once the total is used"
    assert stores.takes(store_prefix(4)), "a store without pending rows continues"
    stores.write([(store_prefix(5), bytes(LIMIT))])
    assert not stores.takes(store_prefix(4)), "but not without limit"
    stores.write_out()
    assert stores.bytes == 0 and stores.takes(ONE)


@contextmanager
def written_by_a_thread(stores: WriteBehindStores, below: StallingStores) -> Iterator[None]:
    """Write all submitted rows in a thread, the earliest first."""
    thread = threading.Thread(target=stores.write_out)
    thread.start()
    try:
        yield
    finally:
        below.resume()
        thread.join()
