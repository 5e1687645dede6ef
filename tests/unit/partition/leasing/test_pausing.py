"""Tests that a paused group gets no messages, loses nothing, and does not affect other groups."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.limits import FIXED
from sandq.model.partitioning import ordering_hash
from sandq.model.pauses import FOREVER, STORED_KEY_BYTES
from sandq.model.row_kinds import COMMON
from sandq.model.times import format_instant
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.groups import group_table, part_pauses
from sandq.partition.groups.group import PAUSED, Group
from sandq.partition.groups.part_pauses import Part, PausedPart, command_part
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.ranked_bench import RankedBench

HOUR = 3_600_000


def pause(bench: Bench, paused: bool = True, at: int = 0, until: int | None = None) -> None:
    until_ms = None if until is None else T + until
    assert bench.apply(at, c.PauseGroup("g", paused, until_ms)) == [None]


def test_paused_group_gets_due_messages_after_resume(bench: Bench) -> None:
    bench.open()
    bench.open("other")
    bench.append("now")
    bench.append("later", due=[5000])
    pause(bench)
    for _ in range(2):
        status = bench.status().groups.get("g")
        assert status is not None and (status.next_ms, status.paused, status.ready) == (
            None,
            f"{PAUSED} it is resumed",
            1,
        )
        assert bench.lease(at=50) == []
        bench.restart()
    assert bench.values(bench.lease(at=5000, group="other")) == ["now", "later"]
    pause(bench, False, at=6000)
    status = bench.status().groups.get("g")
    assert status is not None and (status.next_ms, status.paused) == (T, None)
    assert bench.values(bench.lease(at=6000)) == ["now", "later"]


def test_leased_messages_stay_leased_and_returned_ones_wait(bench: Bench) -> None:
    bench.open()
    bench.append(*"abc")
    first, second, third = (bench.one(limit=1) for _ in range(3))
    pause(bench)
    assert bench.extend(second.token, 60_000, at=1) == T + 60_001
    assert bench.ack(first.token, at=1) is None
    assert bench.nack(second.token, at=1, delay=0) is None
    bench.expire(at=40_000)
    assert bench.lease(at=50_000) == [], "neither returned messages nor messages of expired leases"
    pause(bench, False, at=50_000)
    assert sorted(bench.values(bench.lease(at=50_000))) == ["b", "c"]
    assert third.token not in bench.machine.groups.named("g").leases


def test_a_ttl_counts_on() -> None:
    bench = Bench(ttl="1m")
    bench.open()
    bench.append("m")
    pause(bench)
    assert bench.status().next_expiry_ms == T + 60_000
    bench.expire(at=60_000)
    assert [letter.reason for letter in bench.dead()] == ["expired"]


def test_paused_group_is_kept_without_consumers() -> None:
    bench = Bench(group_ttl="1h")
    bench.open()
    bench.append("m")
    pause(bench)
    for hours in (1, 2, 5):
        bench.apply(hours * HOUR, c.Upkeep())
        assert bench.machine.groups.find("g") is not None
    pause(bench, False, at=5 * HOUR + 10)
    bench.apply(6 * HOUR, c.Upkeep())
    (lease,) = bench.lease(at=6 * HOUR)
    assert bench.values([lease]) == ["m"], "the `group_ttl` starts again at the end of the pause"
    bench.ack(lease.token, at=6 * HOUR)
    bench.apply(8 * HOUR, c.Upkeep())
    assert bench.machine.groups.find("g") is None


def test_settings_and_a_seek_leave_it_paused(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 1}))
    pause(bench)
    bench.apply(0, c.ConfigureGroup("g", {}))
    bench.seek("earliest")
    bench.open()
    assert bench.lease(at=1) == []
    pause(bench, False, at=1)
    assert bench.values(bench.lease(at=1)) == ["m"]


def test_row_of_group_that_is_not_paused_is_unchanged(bench: Bench) -> None:
    """A version without pauses can read the row."""
    bench.open()

    def fields() -> int:
        ((_, row),) = bench.rows(rows.GROUP)
        return len(rows.unpack(row))

    before = fields()
    pause(bench)
    assert fields() == before + 1
    pause(bench, False)
    assert fields() == before


def test_a_group_that_is_made_paused_is_paused(bench: Bench) -> None:
    """A group that is paused in other partitions of its topic is created paused."""
    bench.append("m")
    bench.apply(0, c.OpenGroup("g", "earliest", True))
    bench.restart()
    assert bench.lease(at=1) == []
    bench.open()
    assert bench.lease(at=1) == [], "it was there"
    pause(bench, False, at=1)
    assert bench.values(bench.lease(at=1)) == ["m"]
    assert c.OpenGroup("g", "latest").fields() == ("g", "latest"), "in the form of versions without pauses"


def test_a_pause_with_an_end_ends_by_itself(bench: Bench) -> None:
    bench.open()
    bench.append("now")
    bench.append("later", due=[5000])
    pause(bench, until=4000)
    for _ in range(2):
        status = bench.status()
        (group,) = status.groups
        assert (group.is_paused, group.next_ms, group.paused_until_ms) == (True, T + 4000, T + 4000)
        assert group.paused == f"{PAUSED} {format_instant(T + 4000)}" and status.upkeep_ms == T + 4000
        assert bench.lease(at=3999, ahead=50) == []
        bench.restart()
    assert bench.values(bench.lease(at=4000)) == ["now"]
    (group,) = bench.status().groups
    assert (group.is_paused, group.next_ms, group.paused_until_ms) == (False, T + 5000, None)


def test_each_entry_ends_pauses(bench: Bench) -> None:
    bench.open()
    pause(bench, until=100)
    bench.apply(100, c.Clock())
    (group,) = bench.status().groups
    assert not group.is_paused and group.paused is None


def test_a_new_pause_replaces_the_end(bench: Bench) -> None:
    bench.open()
    bench.append("m")
    pause(bench, until=1000)
    pause(bench, until=500)
    assert bench.lease(at=499) == []
    pause(bench, at=499)
    assert bench.lease(at=2000) == [], "this pause has no end"
    pause(bench, at=2000, until=1999)
    assert bench.values(bench.lease(at=2000)) == ["m"], "this pause has ended"


def test_the_end_of_a_pause_counts_as_use() -> None:
    bench = Bench(group_ttl="1h")
    bench.open()
    pause(bench, until=5 * HOUR)
    for hours in (1, 2, 5):
        bench.apply(hours * HOUR, c.Upkeep())
    assert bench.machine.groups.find("g") is not None
    bench.apply(6 * HOUR, c.Upkeep())
    assert bench.machine.groups.find("g") is None


def test_an_expired_group_may_be_paused_up_to_an_end(bench: Bench) -> None:
    bench.open()
    group = bench.machine.groups.named("g")
    group.is_expired = True
    assert COMMON[rows.GROUP].fields(rows.unpack(group.row())), "a backup may have the row"
    group.pause(True, T + 5)
    assert COMMON[rows.GROUP].fields(rows.unpack(group.row()))
    loaded = Group.load(rows.group_key(1), group.row(), LookAheads())
    assert (loaded.paused, loaded.is_expired, loaded.paused_until_ms) == (True, True, T + 5)
    group.is_expired = False
    loaded = Group.load(rows.group_key(1), group.row(), LookAheads())
    assert (loaded.paused, loaded.is_expired, loaded.paused_until_ms) == (True, False, T + 5)


def test_a_group_is_made_paused_up_to_the_end_of_other_partitions(bench: Bench) -> None:
    bench.append("m")
    command = c.OpenGroup("g", "earliest", True, T + 100)
    assert c.OpenGroup.parse(command.fields()) == command
    bench.apply(0, command)
    assert bench.lease(at=99) == []
    assert bench.values(bench.lease(at=100)) == ["m"]


# -- tenants and keys --------------------------------------------------------------------------------------------------


def part(bench: Bench, name: str | bytes, until: int | None, at: int = 0) -> None:
    """Pause a tenant or a key up to `until`; None: resume it."""
    hashed = name if isinstance(name, str) else ordering_hash(name)
    assert bench.apply(at, c.PausePart("g", hashed, None if until is None else T + until)) == [None]


def send(bench: Bench, *messages: str) -> list[bytes]:
    """Store messages with a key, and return their offsets. Each is given by a letter for its value, and one for its
    key."""
    stored = bench.send(*[one[0] for one in messages], keys=[one[1] for one in messages])
    return [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), 16)]


def why(bench: Bench, offset: bytes) -> str:
    shown = PartitionQueries(bench.machine, bench.view).why(by_id(offset))
    assert shown is not None
    return str(shown["groups"][0]["reason"])


@pytest.fixture
def fair() -> RankedBench:
    bench = RankedBench("fair")
    bench.open()
    return bench


@pytest.fixture
def ordered() -> Bench:
    bench = Bench(ordering="key")
    bench.open()
    return bench


def test_messages_of_a_paused_tenant_and_of_those_below_it_are_not_leased(fair: RankedBench) -> None:
    ids = fair.add("a", "b", "c", "d", tenant=["acme", "acme.eu", "acmes", "other"])
    part(fair, "acme", 1000)
    for _ in range(2):
        assert sorted(fair.values(fair.lease(at=999, limit=1))) in (["c"], ["d"])
        fair.restart()
    assert fair.lease(at=999) == []
    (group,) = fair.status().groups
    assert (group.paused_tenants, group.paused_keys, group.next_ms) == (1, 0, T + 1000)
    assert why(fair, ids[0]) == f"tenant acme is paused until {format_instant(T + 1000)}"
    assert fair.lease(at=999) == []
    assert sorted(fair.values(fair.lease(at=1000))) == ["a", "b"]
    assert fair.rows(rows.PAUSE) == []


def test_a_tenant_is_paused_until_it_is_resumed(fair: RankedBench) -> None:
    fair.add("a", tenant=["acme"])
    fair.apply(0, c.PausePart("g", "acme", FOREVER))
    assert fair.lease(at=10**9) == []
    (group,) = fair.status().groups
    assert group.next_ms is None
    part(fair, "acme", None, at=10**9)
    assert fair.values(fair.lease(at=10**9)) == ["a"]


def test_returned_messages_of_a_paused_tenant_wait(fair: RankedBench) -> None:
    fair.add("a", tenant=["acme"])
    lease = fair.one()
    part(fair, "acme", 5000)
    fair.nack(lease.token, at=1, delay=0)
    assert fair.lease(at=4999) == []
    assert fair.values(fair.lease(at=5000)) == ["a"]


def test_messages_of_a_paused_key_are_blocked_in_order(ordered: Bench) -> None:
    ids = send(ordered, "1k", "2k", "xl", "3k")
    part(ordered, b"k", 1000)
    for _ in range(2):
        assert ordered.values(ordered.lease(at=1)) in (["x"], [])
        ordered.restart()
    assert len(ordered.machine.groups.named("g").order.blocked) == 3, "they count for the window"
    assert why(ordered, ids[0]) == f"its key is paused until {format_instant(T + 1000)}"
    assert ordered.status().upkeep_ms == T + 1000
    for number in "123":
        lease = ordered.one(at=1000)
        assert ordered.values([lease]) == [number]
        ordered.ack(lease.token, at=1000)
    assert ordered.rows(rows.PAUSE) == []


def test_returned_messages_of_a_paused_key_wait(ordered: Bench) -> None:
    """Messages of several keys that are nacked together are leased apart."""
    ids = send(ordered, "1k", "xl")
    lease = ordered.one()
    part(ordered, b"k", 5000)
    ordered.nack(lease.token, at=1, delay=0)
    for _ in range(2):
        assert ordered.values(ordered.lease(at=2)) in (["x"], [])
        ordered.restart()
    assert why(ordered, ids[0]) == f"its key is paused until {format_instant(T + 5000)}"
    part(ordered, b"k", 6000, at=4000)
    assert ordered.lease(at=5999) == []
    again = ordered.one(at=6000)
    assert ordered.values([again]) == ["1"] and again.attempt == 2


def test_a_group_has_a_limited_number_of_paused_parts(fair: RankedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_pauses, "FIXED", replace(FIXED, paused_parts=2))
    for name in ("a", "b", "a"):
        part(fair, name, 1000)
    (refused,) = fair.apply(0, c.PausePart("g", "c", T + 1000))
    assert isinstance(refused, InvalidRequest) and refused.details["limit"] == "paused_parts"
    part(fair, "c", 2000, at=1000)


def test_an_entry_ends_a_bounded_number_of_pauses(ordered: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_table, "PAUSES_ENDED", 2)
    for number in range(5):
        part(ordered, b"%d" % number, 1000)
    left = []
    for at in (1000, 1000, 1001):
        assert ordered.status().upkeep_ms == T + 1000
        ordered.apply(at, c.Upkeep())
        left.append(len(ordered.rows(rows.PAUSE)))
    assert left == [3, 1, 0]


def test_topics_without_tenants_or_keys_refuse_to_pause_them(bench: Bench, fair: RankedBench) -> None:
    bench.open()
    for one, name in ((bench, "acme"), (bench, 5), (fair, 5)):
        (refused,) = one.apply(0, c.PausePart("g", name, T + 5))
        assert isinstance(refused, InvalidRequest) and "pause the group" in refused.message


def test_rows_of_pauses_go_with_their_group(fair: RankedBench) -> None:
    part(fair, "acme", 1000)
    assert all(COMMON[rows.PAUSE].key(key[1:], 0) for key, _ in fair.rows(rows.PAUSE))
    fair.apply(1, c.DropGroup("g"))
    fair.apply(2, c.Upkeep())
    assert fair.rows(rows.PAUSE) == []
    fair.apply(2000, c.Upkeep())


# -- lists -------------------------------------------------------------------------------------------------------------


def listed(bench: Bench, most: int = 10, known: Container[Part] = ()) -> tuple[list[PausedPart], int]:
    return PartitionQueries(bench.machine, bench.view).paused_parts("g", most, known)


def test_paused_keys_are_listed_with_their_keys_after_a_restart(ordered: Bench) -> None:
    long = b"k" * (STORED_KEY_BYTES + 1)
    hashes = {key: ordering_hash(key) for key in (b"a", b"\xff", long)}
    for key in hashes:
        ordered.apply(0, c.PausePart("g", command_part(key), T + 1000))
    ordered.apply(0, c.PausePart("g", b"\xff", FOREVER))
    expected = [PausedPart(hashes[b"a"], T + 1000, b"a"), PausedPart(hashes[b"\xff"], FOREVER, b"\xff")]
    expected.append(PausedPart(hashes[long], T + 1000, None))
    expected.sort()
    for _ in range(2):
        assert listed(ordered) == (expected, 0)
        ordered.restart()
    assert listed(ordered, most=1) == (expected[:1], 2)
    assert listed(ordered, known=hashes.values())[0] == [row._replace(key=None) for row in expected]
    assert all(COMMON[rows.PAUSE].fields(rows.unpack(value)) for _, value in ordered.rows(rows.PAUSE))
    ordered.apply(1, c.PausePart("g", b"\xff", None))
    assert hashes[b"\xff"] not in [row.part for row in listed(ordered)[0]]


def test_paused_tenants_are_listed_by_name(fair: RankedBench) -> None:
    for name in ("b", "c", "a"):
        part(fair, name, 1000)
    assert [row.part for row in listed(fair, most=2)[0]] == ["a", "b"]
    with pytest.raises(UnknownGroup):
        PartitionQueries(fair.machine, fair.view).paused_parts("other", 10)


def test_ended_pauses_are_not_listed_before_their_rows_are_removed(
    ordered: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "PAUSES_ENDED", 1)
    part(ordered, b"a", 1000)
    part(ordered, b"b", 1000)
    part(ordered, b"c", 1001)
    ordered.apply(1000, c.Upkeep())
    assert len(ordered.rows(rows.PAUSE)) == 2
    assert [row.part for row in listed(ordered)[0]] == [ordering_hash(b"c")]


# -- by a consumer -----------------------------------------------------------------------------------------------------


def by_lease(bench: Bench, lease: Lease, part: str, until: int, at: int = 0, group: str = "g") -> object:
    """Pause a part for the first message of a lease. Return the end in ms after T, or another result."""
    (result,) = bench.apply(at, c.PauseByLease([(lease.token, lease.ranges[0].base, part, T + until, group)]))
    return result[0].until_ms - T if isinstance(result, list) and result[0] is not None else result


def test_a_consumer_pauses_the_tenant_of_its_message(fair: RankedBench) -> None:
    fair.add("a", "b", "c", tenant=["acme", "acme.eu", "beta"])
    leases = {fair.values([lease])[0]: lease for lease in (fair.one(limit=1), fair.one(limit=1))}
    first = leases.get("a") or leases["b"]
    tenant = "acme" if "a" in leases else "acme.eu"
    assert by_lease(fair, first, "tenant", 1000) == 1000
    assert by_lease(fair, first, "tenant", 500) == 1000, "it is never shortened"
    assert by_lease(fair, first, "tenant", 2000) == 2000
    assert fair.machine.groups.named("g").pauses.ends == {tenant: T + 2000}
    assert isinstance(by_lease(fair, first, "key", 2000), InvalidRequest)
    assert fair.ack(first.token) is None


def test_a_consumer_pauses_the_key_of_its_message(ordered: Bench) -> None:
    send(ordered, "1k", "2k")
    lease = ordered.one()
    assert by_lease(ordered, lease, "key", 1000) == 1000
    assert listed(ordered)[0] == [PausedPart(ordering_hash(b"k"), T + 1000, b"k")]
    ordered.ack(lease.token)
    assert ordered.lease(at=999) == []
    assert ordered.values(ordered.lease(at=1000)) == ["2"]
    assert isinstance(by_lease(ordered, ordered.held()[0], "tenant", 2000, at=1000), InvalidRequest)


@pytest.mark.parametrize(("key", "shown"), [(b"k" * STORED_KEY_BYTES, True), (b"k" * (STORED_KEY_BYTES + 1), False)])
@pytest.mark.parametrize("value", ["1", "1" * rows.INLINE_BYTES])
def test_pause_by_lease_of_a_kept_message_stores_its_key(ordered: Bench, key: bytes, shown: bool, value: str) -> None:
    ordered.send(value, keys=[key.decode()])
    lease = ordered.one()
    assert not lease.kept
    assert by_lease(ordered, lease, "key", 1000) == 1000
    assert listed(ordered)[0] == [PausedPart(ordering_hash(key), T + 1000, key if shown else None)]
    ordered.reject(lease.token, at=2)
    ordered.job("redrive", at=3, reason="rejected")
    again = ordered.one(at=1000)
    assert again.kept
    assert by_lease(ordered, again, "key", 2000, at=1000) == 2000
    assert listed(ordered)[0] == [PausedPart(ordering_hash(key), T + 2000, key if shown else None)]


def test_a_consumer_pauses_its_group(bench: Bench) -> None:
    bench.open()
    bench.append("a", "b")
    lease = bench.one(limit=1)
    assert by_lease(bench, lease, "group", 1000) == 1000
    assert by_lease(bench, lease, "group", 10) == 1000
    assert bench.lease(at=999) == []
    pause(bench, at=999)
    assert by_lease(bench, lease, "group", 5000, at=999) == FOREVER - T, "an operator's pause stays"
    pause(bench, False, at=1000)
    assert bench.values(bench.lease(at=1000)) == ["b"]
    assert isinstance(by_lease(bench, lease, "key", 2000, at=1000), InvalidRequest)


def test_a_lost_lease_pauses_nothing(bench: Bench) -> None:
    bench.open()
    bench.append("a", "b")
    lease = bench.one()
    other = [(lease.token, bytes(16), "group", T + 5, "g"), (99, lease.ranges[0].base, "group", T + 5, "g")]
    assert bench.apply(0, c.PauseByLease(other)) == [[None, None]]
    bench.ack(lease.token, [[lease.ranges[0].base, 1]])
    assert by_lease(bench, lease, "group", 1000) == [None], "this message was acked"
    bench.expire(at=40_000)
    assert by_lease(bench, lease, "group", 50_000, at=40_000) == [None]
    assert not bench.machine.groups.named("g").paused


def test_lease_of_another_group_pauses_nothing(bench: Bench) -> None:
    bench.open()
    bench.open("other")
    bench.append("a")
    refused = by_lease(bench, bench.one(), "group", 1000, group="other")
    assert isinstance(refused, InvalidRequest) and "does not belong to group 'other'" in refused.message
    assert not any(bench.machine.groups.named(name).paused for name in ("g", "other"))


def longer(bench: Bench, tenant: str | None, until: int, at: int = 0, group: str = "g") -> object:
    (result,) = bench.apply(at, c.PauseLonger(group, tenant, T + until))
    return result


def test_pause_of_another_partition_never_shortens_one(bench: Bench) -> None:
    bench.open()
    for until, end in ((1000, 1000), (500, 1000), (2000, 2000)):
        assert longer(bench, None, until) is None
        assert bench.machine.groups.named("g").paused_until_ms == T + end
    bench.restart()
    assert bench.machine.groups.named("g").paused_until_ms == T + 2000
    pause(bench)
    assert longer(bench, None, 3000) is None
    assert bench.machine.groups.named("g").paused_until_ms is None, "an operator's pause stays"
    assert longer(bench, None, 3000, group="none") is None
    pause(bench, False)
    assert longer(bench, None, 10, at=20) is None
    assert not bench.machine.groups.named("g").paused, "its end has passed"
    assert isinstance(longer(bench, "acme", 3000), InvalidRequest)


def test_tenant_pause_of_another_partition_never_shortens_one(
    fair: RankedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = fair.machine.groups.named("g").pauses.ends
    for until, end in ((1000, 1000), (500, 1000), (2000, 2000)):
        assert longer(fair, "acme", until) is None
        assert ends == {"acme": T + end}
    assert longer(fair, "acme", 1500, at=1600) is None
    assert ends == {"acme": T + 2000}, "it never resumes"
    monkeypatch.setattr(part_pauses, "FIXED", replace(FIXED, paused_parts=1))
    refused = longer(fair, "beta", 3000)
    assert isinstance(refused, InvalidRequest) and refused.details["limit"] == "paused_parts"


class CountedScans(dict[str, Any]):
    """Counts the scans of its keys."""

    scans = 0

    def __iter__(self) -> Iterator[str]:
        self.scans += 1
        return super().__iter__()


def test_many_new_pauses_cause_one_scan() -> None:
    """The next round of turns scans all tenants. A pause does not."""
    bench = RankedBench("fair")
    bench.open()
    names = [f"t{number}" for number in range(50)]
    for name in names:
        bench.add("m", tenant=name)
    bench.lease(1, at=1)
    ready = bench.machine.groups.named("g").ready
    assert ready is not None
    ready._by_tenant = tenants = CountedScans(ready._by_tenant)
    bench.apply(2, *[c.PausePart("g", name, T + HOUR) for name in names[5:]])
    assert tenants.scans == 0
    assert len(bench.values(bench.lease(at=3))) == 4
    assert tenants.scans <= 2
