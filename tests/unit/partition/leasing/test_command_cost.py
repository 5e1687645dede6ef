"""Tests that the cost of a command or a lease is independent of the other messages and groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandq.partition import commands as c
from sandq.partition.group_status import GroupStatuses
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T
from tests.support.partition.plain_groups import check_groups

MANY = 400
STEPS = 2 * MANY.bit_length()
"""Number of steps of a few bisections."""


class Seen(list[Any]):
    """A list that counts the reads of its items."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        self.seen += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.seen += 1
        return super().__getitem__(at)


def watched(lease: Lease) -> Seen:
    """Replace the ranges of a lease by a list that counts reads."""
    ranges = Seen(lease.ranges)
    lease.ranges = ranges
    return ranges


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_ack_of_one_message_does_not_scan_every_range(ordering: str) -> None:
    bench = Bench(ordering=ordering)
    bench.open()
    bench.send(*["v"] * MANY, due=[5] * MANY, keys=[f"k{number}" for number in range(MANY)])
    lease = bench.one(limit=MANY, at=10)
    base, ranges = lease.ranges[MANY // 2].base, watched(lease)
    assert bench.ack(lease.token, [[base, 1]], at=20) is None
    assert lease.live.bit_count() == MANY - 1
    assert ranges.seen <= STEPS


def test_nack_of_one_message_does_not_read_every_history() -> None:
    bench = Bench(max_attempts=None)
    bench.open()
    bench.send(*["v"] * MANY, due=[5] * MANY, keys=[f"k{number}" for number in range(MANY)])
    first = bench.one(limit=MANY, at=10)
    for base, _ in list(first.ranges):
        bench.nack(first.token, [[base, 1]], at=10, delay=0)
    lease = bench.one(limit=MANY, at=20)
    assert len(lease.past) == MANY
    bench.nack(lease.token, [[lease.ranges[0].base, 1]], at=20, delay=50_000)
    base, ranges = lease.ranges[MANY // 2].base, watched(lease)
    lease.past = past = Seen(lease.past)
    bench.nack(lease.token, [[base, 1]], at=20, delay=90_000)
    assert (ranges.seen <= STEPS, past.seen) == (True, 0)
    (again,) = [entry for entry in bench.machine.groups.named("g").waiting.values() if entry.due_ms == T + 90_020]
    assert len(again.history) == 2


@pytest.mark.parametrize("ttl_ms", [None, 3_000_000])
def test_waiting_messages_are_leased_without_scanning_the_rest(ttl_ms: int | None) -> None:
    """Only rows of leased messages are read: the expiry of the others is in memory."""

    def reads(waiting: int) -> int:
        bench = Bench(max_attempts=None)
        bench.open()
        bench.send(*["v"] * waiting, due=[5] * waiting, ttls=[ttl_ms] * waiting)
        bench.one(limit=waiting, at=10)
        bench.expire(40_000)
        bench.one(limit=1, at=50_000)
        before = bench.stores.reads
        for _ in range(5):
            bench.one(limit=1, at=50_000)
        return bench.stores.reads - before

    assert reads(MANY) == reads(20)


def test_a_late_cancel_asks_the_lease_that_holds_the_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.open()
    bench.send(*["v"] * MANY, due=[5] * MANY, keys=[f"k{number}" for number in range(MANY)])
    leases = [bench.one(limit=4, at=10, consumer=f"c{number}") for number in range(MANY // 4)]
    asked: list[int] = []
    holds = Lease.holds

    def counted(lease: Lease, offset: bytes) -> bool:
        asked.append(lease.token)
        return holds(lease, offset)

    monkeypatch.setattr(Lease, "holds", counted)
    chosen = leases[MANY // 8]
    assert bench.cancel(chosen.ranges[1].base, at=10) == ("too_late", "leased")
    assert set(asked) == {chosen.token}


class TestGroups:
    """Only groups with changes get a new status."""

    def made(self) -> tuple[Bench, GroupStatuses]:
        bench = Bench()
        bench.apply(0, *[c.OpenGroup(f"g{number}", "earliest") for number in range(20)])
        bench.append("due", "due")
        bench.append("later", due=[50_000])
        return bench, bench.status().groups

    def changed(self, bench: Bench, before: GroupStatuses) -> set[str]:
        """Return the changed groups. The statuses and the reported changes must agree."""
        after = bench.status().groups
        names = {name for name, standing in after._by_name.items() if before._by_name.get(name) is not standing}
        names |= before._by_name.keys() - after._by_name.keys()
        assert names == (set() if after.version == before.version else set(after.changed))
        assert after.version == before.version or after.since == before.version
        return names

    def test_a_lease_and_an_ack_of_one(self) -> None:
        bench, before = self.made()
        lease = bench.one(limit=1, at=1, group="g7")
        assert self.changed(bench, before) == {"g7"}
        before = bench.status().groups
        bench.ack(lease.token, at=1)
        assert self.changed(bench, before) == {"g7"}

    def test_names_are_listed_without_reading_each_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, groups = self.made()
        names = [group.name for group in groups]
        monkeypatch.setattr(GroupStatuses, "__iter__", None)
        assert groups.names == names and len(names) == 20

    def test_message_that_is_next_in_no_group_changes_no_status(self) -> None:
        bench, before = self.made()
        bench.append("much later", due=[90_000])
        bench.apply(1, c.Clock())
        bench.upkeep(at=2)
        assert self.changed(bench, before) == set()
        assert [group.ready for group in bench.status().groups] == [2] * 20

    def test_due_counts_cover_all_groups(self) -> None:
        bench, before = self.made()
        bench.apply(51_000, c.Clock())
        assert self.changed(bench, before) == set()
        assert [group.ready for group in bench.status().groups] == [3] * 20

    def test_message_that_is_next_in_some_groups_changes_only_their_status(self) -> None:
        bench, _ = self.made()
        bench.lease(2, at=1, group="g7")
        before = bench.status().groups
        bench.append("now", at=2)
        assert self.changed(bench, before) == {"g7"}
        assert [bench.status().groups[at].ready for at in (6, 7)] == [3, 1]

    def test_message_due_for_retry_changes_only_the_status_of_its_group(self) -> None:
        bench, _ = self.made()
        bench.nack(bench.one(limit=2, at=1, group="g7").token, at=1, delay=3000)
        before = bench.status().groups
        bench.apply(2000, c.Clock())
        assert self.changed(bench, before) == set()
        bench.apply(3001, c.Clock())
        assert self.changed(bench, before) == {"g7"}
        assert bench.status().groups[7].ready == 2

    def test_dropped_and_new_groups_change_only_their_status(self) -> None:
        bench, before = self.made()
        bench.apply(1, c.DropGroup("g3"), c.OpenGroup("new", "latest"), c.OpenGroup("brief", "latest"))
        bench.apply(1, c.DropGroup("brief"))
        assert self.changed(bench, before) == {"g3", "new"}
        assert bench.status().groups.get("g3") is None
        before = bench.status().groups
        bench.apply(1, c.OpenGroup("g3", "latest"))
        assert self.changed(bench, before) == {"g3"}
        assert [group.name for group in bench.status().groups][-2:] == ["new", "g3"]


def test_a_blocked_message_that_is_copied_aside_keeps_the_log_no_longer() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.put("first", key="k")
    held = bench.one(ms=10_000_000)
    bench.put("behind", key="k", at=1)
    last = bench.put("other", key="o", at=2)
    other = bench.one(at=2)
    check_groups(bench)
    bench.ack(other.token, at=3)
    for at in range(10_000, 130_000, 10_000):
        bench.trim(at)
        check_groups(bench)
    assert bench.status().trimmed == last, "both messages are in rows of the group"
    bench.ack(held.token, at=130_000)
    assert bench.values(bench.lease(at=130_000)) == ["behind"]
    check_groups(bench)


def test_settled_leases_leave_nothing_in_a_group() -> None:
    bench = Bench(max_attempts=None)
    bench.open()
    bench.append("old")
    old = bench.one(ms=10_000_000)
    for at in range(0, 3000, 10):
        bench.append("a", "b", "c", at=at)
        lease = bench.one(at=at, consumer="d")
        bench.nack(lease.token, [[lease.ranges[0].base, 2]], at=at, delay=0)
        for again in bench.lease(at=at, consumer="d"):
            bench.ack(again.token, at=at)
        bench.ack(lease.token, at=at)
    group = bench.machine.groups.named("g")
    assert len(group._holders) == 1
    for heap in (group._firsts, group._logged_firsts, group._since):
        assert 1 <= len(heap) <= 2 * 3 + 65
    bench.ack(old.token, at=3000)
    assert (len(group._holders), group.oldest_held, group.pinned_since_ms) == (0, None, None)
    assert bench.machine.leases._live == {}
