"""Tests of waiting messages that are in rows only, because many messages of a group wait for their next attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import comparable
from sandq.partition.groups import group as group_module
from sandq.partition.groups import spilling
from sandq.partition.groups.group import Group
from sandq.partition.leasing import ranked_grants
from sandq.partition.log import sweep
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.plain_groups import check_groups
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.spilling import spilling_all


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep four ranges of waiting messages in memory."""
    monkeypatch.setattr(group_module, "FIXED", replace(FIXED, waiting_window=4, spilled_messages=20))
    yield


def group_of(bench: Bench, name: str = "g") -> Group:
    return bench.machine.groups.named(name)


def fail_all(bench: Bench, *, at: int = 0, delay: int = 60_000, count: int = 100) -> list[bytes]:
    """Lease messages and nack each; the next attempt of message i is due i ms after `delay`. Return their offsets."""
    found = [offset for lease in bench.lease(count, at=at) for one in lease.ranges for offset in offsets.run(*one)]
    for number, offset in enumerate(found):
        lease = group_of(bench).held_in_memory(offset)
        assert lease is not None
        bench.nack(lease.token, [[offset, 1]], at=at, delay=delay + number, error="down")  # type: ignore[union-attr]
    check_groups(bench)
    return found


def failing(values: str = "abcdefghij", **settings: Any) -> tuple[Bench, list[bytes]]:
    bench = Bench(max_attempts="none", **settings)
    bench.open()
    bench.append(*values)
    return bench, fail_all(bench)


def fail_together(values: str, delays: Sequence[int]) -> Bench:
    """Lease messages together, and nack each of them in one entry, with a delay of its own."""
    bench = Bench(max_attempts="none")
    bench.open()
    bench.append(*values)
    (lease,) = bench.lease(100)
    messages = offsets.run(*lease.ranges[0])
    items = [(lease.token, [[base, 1]], delay, "x") for base, delay in zip(messages, delays, strict=True)]
    bench.apply(0, c.Nack(items))
    return bench


def drained(bench: Bench, *, at: int) -> list[str]:
    """Return the values of all messages that are due, in the order of delivery, and ack them."""
    found: list[str] = []
    while leases := bench.lease(at=at):
        found += bench.values(leases)
        for lease in leases:
            bench.ack(lease.token, at=at)
        check_groups(bench)
    return found


def test_farthest_retries_are_spilled_and_nearest_stay_in_memory() -> None:
    bench, found = failing()
    group = group_of(bench)
    in_memory = [base for entry in group.waiting.values() for base, _ in entry.ranges]
    assert sorted(in_memory) == found[: len(in_memory)] and len(in_memory) < 4
    assert group.spilled.messages == 10 - len(in_memory)
    status = bench.status().groups[0]
    assert (status.waiting, status.unfinished, status.paused) == (10, 10, None)
    assert status.next_ms == T + 60_000


def test_spilled_retries_are_leased_at_their_times() -> None:
    bench, _ = failing()
    bench.restart()
    assert drained(bench, at=59_999) == []
    assert drained(bench, at=60_004) == list("abcde")
    assert drained(bench, at=60_010) == list("fghij")
    assert bench.rows(rows.SPILLED) == bench.rows(rows.SPILLED_AT) == bench.rows(rows.KEPT) == []


def test_spilled_retry_keeps_its_attempts_and_history() -> None:
    bench, found = failing()
    bench.restart()
    leases = [lease for _ in range(9) for lease in bench.lease(1, at=70_000)]
    assert [lease.attempt for lease in leases] == [2] * 9
    last = leases[-1]
    assert last.ranges[0].base == found[8]
    assert [(past.number, past.error) for past in last.past_of(found[8])] == [(1, "down")]


def test_new_messages_are_leased_while_many_retries_wait() -> None:
    bench, _ = failing()
    bench.append("new")
    assert drained(bench, at=10) == ["new"]


def test_group_with_too_many_retries_gets_no_new_messages() -> None:
    bench, _ = failing("abcdefghijklmnopqrstuvwxyz")
    bench.append("new")
    assert drained(bench, at=10) == []
    reason = bench.status().groups[0].paused
    assert reason is not None and "messages wait for another attempt (limit 20)" in reason
    assert len(drained(bench, at=70_000)) == 27


def test_log_is_trimmed_although_spilled_retries_wait() -> None:
    bench, found = failing()
    bench.trim(at=0)
    in_log = {key[1:] for key, _ in bench.rows(rows.LOG)}
    assert in_log, "the messages in memory keep the log"
    drained(bench, at=60_002)
    bench.trim(at=60_002)
    assert bench.rows(rows.LOG) == [] and group_of(bench).spilled.messages > 0
    bench.restart()
    assert drained(bench, at=90_000) == list("defghij")
    assert found


def in_memory(bench: Bench) -> int:
    """Return the number of messages of the group that wait in memory."""
    return sum(entry.ranges.messages for entry in group_of(bench).waiting.values())


def test_nack_beyond_the_window_never_gets_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = failing("abc")
    bench.checks_loading = False
    taken: list[int] = []
    monkeypatch.setattr(Group, "add_waiting", lambda group, entry: taken.append(entry.ranges.messages))
    bench.append("new", at=10)
    lease = bench.one(limit=1, at=10)
    bench.nack(lease.token, at=10, delay=60_000)
    assert not taken and group_of(bench).spilled.messages == 2
    monkeypatch.undo()
    bench.restart()
    assert drained(bench, at=70_000) == ["a", "b", "c", "new"]


def test_retry_that_is_due_before_others_stays_in_memory() -> None:
    bench, _ = failing("abc")
    bench.append("soon", at=10)
    lease = bench.one(limit=1, at=10)
    bench.nack(lease.token, at=10, delay=1000)
    assert bench.status().groups[0].next_ms == T + 1010
    bench.restart()
    assert drained(bench, at=1010) == ["soon"]


def test_nack_of_large_messages_spills_a_part_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "SPILLED_BYTES", 250)
    bench, _ = failing("abc")
    for value in "defg":
        bench.append(value * 100, at=10)
    (lease,) = bench.lease(10, at=10)
    bench.nack(lease.token, at=10, delay=60_000)
    check_groups(bench)
    assert in_memory(bench) + group_of(bench).spilled.messages == 7
    bench.restart()
    check_groups(bench)
    assert sorted(value[0] for value in drained(bench, at=80_000)) == list("abcdefg")


def test_each_entry_spills_a_part_of_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "SPILLED_LEAST", 2)
    # Each message is due before the one that was nacked before it. So all of them get into memory, and two may stay.
    bench = fail_together("abcdefghi", range(60_000, 60_000 - 9, -1))
    assert in_memory(bench) == 9 - (9 - 2) // 2
    bench.apply(0, c.Clock())
    assert in_memory(bench) == 6 - 2
    bench.restart()
    bench.apply(0, c.Clock())
    assert in_memory(bench) == 2


@pytest.mark.parametrize("new", [1, 6])
def test_lease_recalls_few_retries_while_new_messages_are_ready(new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_grants, "RECALLED_WITH_NEW", 1)
    monkeypatch.setattr(group_module, "FIXED", replace(FIXED, waiting_window=8))
    bench = RankedBench("fair", max_attempts="none")
    bench.open()
    bench.append(*"abcdefghijkl")
    fail_all(bench)
    before = in_memory(bench)
    bench.append(*[f"new{number}" for number in range(new)], at=80_000)
    found = bench.values(bench.lease(at=80_000))
    assert len(found) == before + new + max(new // 2, 1)
    assert len(bench.values(bench.lease(at=80_000))) == 12 - before - max(new // 2, 1), "then it recalls the others"


@pytest.mark.parametrize("kind", ["timer", "fair"])
def test_lease_may_leave_spilled_retries_where_they_are(kind: str) -> None:
    bench = Bench(max_attempts="none") if kind == "timer" else RankedBench(kind, max_attempts="none")
    bench.open()
    bench.append(*"abcdefghij")
    fail_all(bench)
    before = group_of(bench).spilled.messages
    bench.append("new", at=80_000)
    bench.restart()
    found: list[str] = []
    while leases := bench.apply(80_000, c.Lease("g", T + 80_000, [c.Grant("c", 100, 30_000)], recalls=False))[0]:
        found += bench.values(leases)
    assert len(found) == 11 - before and "new" in found
    assert group_of(bench).spilled.messages == before
    assert bench.status().groups[0].next_ms == T + 60_000 + 10 - before
    found += drained(bench, at=80_000)
    assert sorted(found) == sorted([*"abcdefghij", "new"])


def test_cancel_of_spilled_retry_succeeds() -> None:
    bench, found = failing()
    assert bench.cancel(found[8]).word == "cancelled"
    check_groups(bench)
    assert bench.cancel(found[8]).word == "cancelled"
    assert drained(bench, at=70_000) == list("abcdefghj")


def test_move_of_spilled_retry_changes_its_time() -> None:
    bench, found = failing()
    assert bench.move(found[9], 5_000).word == "moved"
    assert bench.move(found[4], 90_000).word == "moved"
    check_groups(bench)
    bench.restart()
    assert drained(bench, at=5_000) == ["j"]
    assert drained(bench, at=80_000) == list("abcdfghi")
    assert drained(bench, at=90_000) == ["e"]


def test_update_of_spilled_retry_is_delivered() -> None:
    bench, found = failing()
    assert bench.update(found[7], "changed").word == "updated"
    assert drained(bench, at=70_000) == [*"abcdefg", "changed", *"ij"]


def test_status_of_spilled_retry_is_shown() -> None:
    bench, found = failing()
    queries = PartitionQueries(bench.machine, bench.view)
    shown = queries.why(by_id(found[9]))
    assert shown is not None
    (state,) = shown["groups"]
    assert (state["state"], state["attempt"], state["due_ms"], state["error"]) == ("waiting", 1, T + 60_009, "down")
    (row,) = queries.group_rows()
    assert (row["waiting"], row["unfinished"]) == (10, 10)


def test_expired_spilled_retry_dies_at_its_time() -> None:
    bench, found = failing(ttl="30s")
    assert bench.status().next_expiry_ms == T + 30_000
    for at in range(0, 30_000, 5_000):
        assert bench.expire(at) == 0
    died = 0
    while bench.status().next_expiry_ms is not None:
        died += bench.expire(30_000)
        check_groups(bench)
    assert died == 10 and len(bench.dead()) == 10
    assert {message.offset for message in bench.dead()} == {*found}


def test_seek_back_delivers_spilled_messages_once() -> None:
    bench, _ = failing()
    bench.seek("earliest", at=10)
    check_groups(bench)
    assert drained(bench, at=10) == list("abcdefghij")
    assert drained(bench, at=90_000) == []


def test_seek_back_delivers_spilled_messages_that_were_trimmed() -> None:
    bench, _ = failing()
    assert drained(bench, at=60_002) == list("abc")
    bench.trim(at=60_002)
    bench.restart()
    bench.seek("earliest", at=60_002)
    bench.restart()
    assert sorted(drained(bench, at=60_002)) == list("defghij")
    assert drained(bench, at=90_000) == []


def test_seek_forward_drops_spilled_messages() -> None:
    bench, _ = failing()
    bench.seek("latest", at=10)
    assert drained(bench, at=90_000) == []
    assert bench.rows(rows.SPILLED) == bench.rows(rows.SPILLED_AT) == bench.rows(rows.KEPT) == []


def test_change_of_spilled_message_is_too_late_until_the_seek_has_decided() -> None:
    bench, found = failing()
    bench.apply(10, c.Seek("g", "earliest"))
    assert tuple(bench.cancel(found[9], at=10)) == ("too_late", "waiting")
    assert tuple(bench.move(found[9], 50_000, at=10)) == ("too_late", "waiting")
    bench.trim(at=10)
    assert bench.cancel(found[9], at=10).word == "cancelled"
    assert drained(bench, at=10) == list("abcdefghi")


def test_deleted_group_leaves_no_spilled_rows() -> None:
    bench, _ = failing()
    bench.apply(10, c.DropGroup("g"))
    bench.trim(at=10)
    assert bench.rows(rows.SPILLED) == bench.rows(rows.SPILLED_AT) == bench.rows(rows.KEPT) == []


def test_deleting_a_group_with_spilled_messages_needs_force() -> None:
    bench, _ = failing("abcdef")
    (answer,) = bench.apply(10, c.DropGroup("g", unless_unfinished=True))
    assert "6" in str(answer)


def test_topic_with_key_order_spills_nothing() -> None:
    bench, _ = failing(ordering="key")
    assert group_of(bench).spilled.messages == 0 and len(group_of(bench).waiting) == 10


def test_large_messages_are_spilled_over_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "SPILLED_BYTES", 1)
    bench = fail_together("abcdefgh", [60_000] * 8)
    assert group_of(bench).spilled.messages == 1, "each entry spills one message"
    for _ in range(10):
        bench.append("later", due=[10_000_000])
    assert group_of(bench).spilled.messages == 6


def test_spilled_messages_with_one_state_are_recalled_together() -> None:
    bench = Bench(max_attempts="none")
    bench.open()
    bench.append(*"abcdefgh")
    for lease in [bench.one(limit=1) for _ in range(8)]:
        bench.nack(lease.token, delay=1000)
    assert group_of(bench).spilled.messages >= 4
    bench.lease(1, at=1000)
    together = [entry.ranges.messages for entry in group_of(bench).waiting.values() if len(entry.ranges) == 1]
    assert max(together) > 1


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_spilled_messages_return_to_their_ready_queues(kind: str) -> None:
    bench = RankedBench(kind, max_attempts="none")
    bench.open()
    bench.add(*"abcdefgh", priority=[-at for at in range(8)])
    fail_all(bench)
    assert group_of(bench).spilled.messages >= 4
    bench.restart()
    found: list[str] = []
    while leases := bench.lease(1, at=70_000):
        found += bench.values(leases)
        bench.ack(leases[0].token, at=70_000)
    assert sorted(found) == list("abcdefgh")


def test_spilled_messages_of_a_paused_tenant_do_not_delay_other_tenants() -> None:
    bench = RankedBench("fair", max_attempts="none")
    bench.open()
    bench.add(*"abcdefghijklmnop", tenant="busy")
    bench.add("z", tenant="other")
    fail_all(bench)
    bench.apply(10, c.PausePart("g", "busy", T + 100_000))
    bench.restart()
    found: list[str] = []
    for at in range(60_000, 60_100, 10):
        found += drained(bench, at=at)
    assert found == ["z"]
    assert drained(bench, at=99_999) == []
    assert sorted(drained(bench, at=100_000)) == list("abcdefghijklmnop")


def test_spilled_messages_are_leased_soon_after_their_tenant_is_resumed() -> None:
    bench = RankedBench("fair", max_attempts="none")
    bench.open()
    bench.add(*"abcdefghijklmnop", tenant="busy")
    fail_all(bench)
    bench.apply(10, c.PausePart("g", "busy", T + 3_600_000))
    assert drained(bench, at=60_020) == []
    bench.apply(61_000, c.PausePart("g", "busy", None))
    found = drained(bench, at=61_000)
    found += drained(bench, at=60_020 + spilling.POSTPONED_MS)
    assert sorted(found) == list("abcdefghijklmnop")


def crowded_by_a_limit(monkeypatch: pytest.MonkeyPatch, window: int = 8) -> RankedBench:
    """Fill the window with due retries of a tenant with one message in flight. A retry of another tenant is spilled."""
    monkeypatch.setattr(group_module, "FIXED", replace(FIXED, waiting_window=4))
    bench = RankedBench("fair", max_attempts="none", tenants={"busy": {"max_in_flight": 1}})
    bench.open()
    bench.add(*"abcdefghijklmnop", tenant="busy")
    for number in range(16):
        (lease,) = bench.lease(1)
        bench.nack(lease.token, delay=60_000 + number, error="down")
    bench.add("z", tenant="other")
    bench.nack(bench.one(limit=1).token, delay=60_100)
    monkeypatch.setattr(group_module, "FIXED", replace(FIXED, waiting_window=window))
    monkeypatch.setattr(ranked_grants, "RECALLED", window)
    return bench


def test_tenant_at_its_limit_does_not_keep_spilled_messages_of_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = crowded_by_a_limit(monkeypatch)
    held = bench.lease(at=60_200)
    assert bench.values(held) == ["a"]
    bench.restart()
    found: list[str] = []
    for at in range(60_200, 60_300, 10):
        found += [value for lease in bench.lease(at=at) for value in bench.values([lease])]
    assert found == ["z"], "the first message of the busy tenant is still in flight"
    for lease in (*held, *group_of(bench).leases.values()):
        bench.ack(lease.token, at=60_300)
    done: list[str] = []
    for at in range(60_300, 60_300 + 4 * spilling.HELD_UP_MS, 100):
        done += drained(bench, at=at)
    assert sorted(done) == list("bcdefghijklmnop")


def test_ranges_of_several_messages_are_freed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "FIXED", replace(FIXED, waiting_window=6, spilled_messages=10_000))
    monkeypatch.setattr(spilling, "FREED", 2)
    bench = RankedBench("fair", max_attempts="none", tenants={"busy": {"max_in_flight": 1}})
    bench.open()
    for _ in range(20):
        bench.add(*"abcdefghij", tenant="busy")
    bench.add("z", tenant="other")
    for at in range(201):
        (lease,) = bench.lease(1)
        bench.nack(lease.token, delay=60_000 if at < 200 else 60_100)
    found: list[str] = []
    for at in range(61_000, 61_100, 10):
        found += [value for lease in bench.lease(5, at=at) for value in bench.values([lease]) if value == "z"]
    assert found == ["z"]


def test_expired_messages_are_not_freed_but_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = crowded_by_a_limit(monkeypatch)
    bench.apply(60_150, c.Configure(bench.settings | {"ttl_ms": 61_000}))
    for at in range(60_200, 63_000, 50):
        bench.lease(5, at=at)
        bench.expire(at)
    assert len(bench.dead()) >= 15 and not group_of(bench).spilled.messages


@pytest.mark.parametrize("kind", ["timer", "fair"])
def test_retries_do_not_fall_behind_a_backlog(kind: str) -> None:
    """Each lease takes 40 messages, of which a quarter fails once. Retries come at about their time."""
    bench = RankedBench(kind, max_attempts="none") if kind == "fair" else Bench(max_attempts="none")
    bench.open()
    bench.append(*[f"{number:04}" for number in range(2000)])
    late = 0
    for at in range(0, 4000, 100):
        for lease in bench.lease(40, at=at):
            if lease.attempt == 1:
                failed = [offset for one in lease.ranges for offset in offsets.run(*one)][:10]
                bench.nack(lease.token, [[offset, 1] for offset in failed], at=at, delay=500)
            else:
                late = max(late, at - (lease.due_ms - T))
            bench.ack(lease.token, at=at)
    assert 0 <= late <= 400, late


def test_replicas_free_their_windows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    benches = [crowded_by_a_limit(monkeypatch) for _ in range(2)]
    for at in range(60_000, 75_000, 50):
        if at % 400 == 0:
            benches[1].restart()
        taken = [[bench.values([lease]) for lease in bench.lease(5, at=at)] for bench in benches]
        assert taken[0] == taken[1]
        for bench in benches:
            for lease in list(group_of(bench).leases.values()):
                if at % 250 == 0:
                    bench.ack(lease.token, at=at)
        assert comparable(benches[0].everything()) == comparable(benches[1].everything())


def test_due_messages_are_recalled_although_no_more_may_be_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages that were in flight when the limit was reached are due much later."""
    bench = Bench(max_attempts="none")
    bench.open()
    bench.append(*[f"{number:02}" for number in range(30)])
    offsets_of = [offset for lease in bench.lease(100) for one in lease.ranges for offset in offsets.run(*one)]
    for number, offset in enumerate(offsets_of):
        lease = group_of(bench).held_in_memory(offset)
        assert lease is not None
        bench.nack(lease.token, [[offset, 1]], delay=(1000 if number < 22 else 10**8) + number)  # type: ignore[union-attr]
    assert group_of(bench).spilled_capacity <= 0
    assert sorted(drained(bench, at=2000)) == [f"{number:02}" for number in range(22)]
    assert len(drained(bench, at=10**8 + 100)) == 8


def test_restarted_replica_spills_the_same_messages_after_a_cancel_within_a_range() -> None:
    """The cancel makes two ranges of one: then there is one too many."""
    benches = [Bench(max_attempts="none") for _ in range(2)]
    for bench in benches:
        bench.open()
        (base, _) = bench.append("a", "b", "c")
        bench.nack(bench.one().token, delay=900_000)
        bench.append("d")
        fail_all(bench)
        assert group_of(bench).waiting_ranges == 2
        bench.cancel(offsets.shift(base, 1))
        assert group_of(bench).spilled.messages > 0
    benches[1].restart()
    for bench in benches:
        bench.apply(1, c.Touch(["g"]))
    assert comparable(benches[0].everything()) == comparable(benches[1].everything())


def test_message_that_is_recalled_to_expire_is_not_spilled_again() -> None:
    with spilling_all():
        bench, _ = failing("abc", ttl="30s")
        assert group_of(bench).spilled.messages == 3
        bench.lease(at=30_000)
        assert group_of(bench).spilled.messages == 0


def test_cancel_is_too_late_for_a_message_that_was_swept_sought_and_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 2)
    with spilling_all():
        bench = RankedBench("priority")
        bench.open("g")
        bench.open("h")
        bench.add("high", priority=9)
        message, *_ = bench.add("low", *"abcdefgh", priority=0)
        for group in "gh":
            lease = bench.one(limit=9, at=1, group=group)
            bench.nack(lease.token, [[message, 1]], at=1, delay=600_000)
            bench.ack(lease.token, at=1)
        for at in (100, 61_000, 61_500, 130_000, 200_000):
            bench.trim(at)
        assert message not in {key[1:] for key, _ in bench.rows(rows.LOG)}, "it was swept"
        bench.seek("earliest", at=200_000)
        leases = bench.lease(at=200_001)
        assert "low" in bench.values(leases)
        for lease in leases:
            bench.ack(lease.token, at=200_001)
        assert bench.cancel(message, at=200_002).word == "too_late"


def test_committed_offset_is_before_spilled_messages() -> None:
    bench, found = failing()
    drained(bench, at=60_003)
    (row,) = PartitionQueries(bench.machine, bench.view).group_rows()
    assert group_of(bench).waiting_ranges == 0
    assert row["committed"] == group_of(bench).spilled.first
    assert row["committed"] in found
