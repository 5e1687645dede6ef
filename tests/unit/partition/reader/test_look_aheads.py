"""Tests of look-aheads: they are small for idle groups, and shrink when the node has too little memory."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.reader import reader
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.reader import ENTRY_BYTES, HEAD_ENTRIES, LOOK_AHEAD_ENTRIES
from tests.support.partition.bench import Bench, T, by_id

MANY = 3000


@pytest.fixture
def look_aheads() -> LookAheads:
    return LookAheads(64 * ENTRY_BYTES)


@pytest.fixture
def bench(look_aheads: LookAheads) -> Bench:
    """A partition with one of the groups "g" and "h" and many messages with different times."""
    bench = Bench(look_aheads=look_aheads)
    bench.open("g")
    bench.open("h")
    bench.append(*[str(at) for at in range(MANY)], due=list(range(MANY)))
    bench.status()
    return bench


def _ahead(bench: Bench, group: str) -> int:
    """Return the number of entries that a group has in memory."""
    return len(bench.machine.groups.named(group).reader.entries)


@pytest.mark.parametrize("restart", [False, True])
def test_idle_group_has_a_small_look_ahead(bench: Bench, restart: bool) -> None:
    if restart:
        bench.restart()
    bench.append(*[f"{at} again" for at in range(MANY)], due=list(range(MANY)))
    status = bench.status()
    assert [group.next_ms for group in status.groups] == [T, T]
    assert 1 <= _ahead(bench, "g") <= 2 * HEAD_ENTRIES
    assert bench.look_aheads.bytes == 0


def test_look_ahead_doubles_for_a_busy_group(bench: Bench) -> None:
    found = 0
    while found < MANY:
        (lease,) = bench.lease(100, at=MANY)
        bench.ack(lease.token, at=MANY)
        found += lease.total
        assert _ahead(bench, "g") <= min(4 * (found + HEAD_ENTRIES), LOOK_AHEAD_ENTRIES)
    assert _ahead(bench, "h") <= 2 * HEAD_ENTRIES


def test_bytes_of_all_look_aheads_are_summed(bench: Bench, look_aheads: LookAheads) -> None:
    for group in "gh":
        bench.lease(1000, at=MANY, group=group)
    held = [reader.held_bytes for reader in bench.machine.groups.readers()]
    assert all(held) and look_aheads.bytes == sum(held)
    largest = ENTRY_BYTES + max(entry.size for entry in bench.machine.groups.named("g").reader.entries)
    assert held == [(_ahead(bench, group) - 2 * HEAD_ENTRIES) * largest for group in "gh"]
    bench.seek("earliest", at=MANY)
    assert look_aheads.bytes == held[1]


def test_least_recently_used_look_ahead_is_dropped(bench: Bench, look_aheads: LookAheads) -> None:
    for group in "hg":
        bench.lease(1000, at=MANY, group=group)
    look_aheads.share_bytes = look_aheads.bytes - 1
    assert look_aheads.is_over
    ahead = _ahead(bench, "g")
    look_aheads.evict(bench.machine.groups.readers)
    assert _ahead(bench, "h") == HEAD_ENTRIES and _ahead(bench, "g") == ahead
    assert not look_aheads.is_over and look_aheads.evicted == 1
    assert bench.values(bench.lease(3, at=MANY, group="h")) == ["1000", "1001", "1002"]


def test_unique_keys_are_counted_with_their_length(look_aheads: LookAheads) -> None:
    bench = Bench(look_aheads=look_aheads)
    bench.open()
    keys = [f"{at:04}" + "k" * 996 for at in range(100)]
    bench.send(*keys, due=list(range(100)), unique=keys)
    bench.lease(60, at=99)
    assert look_aheads.bytes == (_ahead(bench, "g") - 2 * HEAD_ENTRIES) * (2 * ENTRY_BYTES + 1000) > 0


def test_dropped_group_counts_until_the_next_eviction(bench: Bench, look_aheads: LookAheads) -> None:
    bench.lease(1000, at=MANY)
    held = look_aheads.bytes
    bench.apply(MANY, c.DropGroup("g"))
    assert look_aheads.bytes == held > 0
    look_aheads.share_bytes = held - 1
    look_aheads.evict(bench.machine.groups.readers)
    assert look_aheads.bytes == 0 and look_aheads.evicted == 0


def test_look_ahead_stays_small_after_batch_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each updated message of a batch is a separate entry. An update of one message must not visit all 65,536."""
    monkeypatch.setattr(reader, "LOOK_AHEAD_ENTRIES", 8)
    bench = Bench()
    bench.open()
    base = bytes(bench.append(*[f"m{at}" for at in range(100)])[0])
    found = bench.machine.groups.named("g")
    for at in range(1, 100, 2):
        if at == 1:
            assert bench.values(bench.lease(1)) == ["m0"]
        change = {Column.VALUE.value: f"new{at}".encode()}
        bench.apply(0, c.Move([(by_id(offsets.shift(base, at)), None, False, None, change)]))
        assert len(found.reader.entries) <= 2 * 8 + 2
    values = ["m0"]
    while leases := bench.lease(7):
        values += bench.values(leases)
    assert values == [f"new{at}" if at % 2 else f"m{at}" for at in range(100)]
