"""Tests of a clock reset, case by case: the new value of each stored time. Random work: tests/property."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import InvalidRequest, Unavailable
from sandq.model.limits import FIXED
from sandq.model.retries import RetryRules
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from sandq.partition.groups import spilling
from sandq.partition.groups.group import Group
from sandq.partition.leasing import settlement
from sandq.partition.log.appends import Stored
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.ready import queue_entries
from tests.support.partition.bench import Bench, T, batch_of, by_key
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.ranked_bench import RankedBench

YEAR = 365 * 86_400_000
HOUR = 3_600_000


def poisoned(**settings: Any) -> Bench:
    """Return a partition with a group. One entry was stamped a year ahead."""
    bench = Bench(**settings)
    bench.open()
    bench.apply(YEAR, c.Clock())
    return bench


def set_back(bench: Bench, to: int, *, restart: bool = False) -> None:
    """Set the clock back and apply all steps."""
    assert bench.apply(to, c.ClockReset(T + to))[0]["outcome"] == "begun"
    steps = 0
    while bench.apply(to, c.Upkeep())[0] and bench.status().reset is not None:
        steps += 1
        assert steps < 1000
        if restart:
            bench.restart()


def test_message_for_now_comes_now_after_a_reset() -> None:
    bench = poisoned()
    bench.append("before", at=1000)
    assert bench.lease(at=2000) == []
    set_back(bench, 3000)
    bench.append("after", at=4000)
    assert bench.values(bench.lease(at=4000)) == ["before", "after"]


@pytest.mark.parametrize("bench", [Bench(), RankedBench("priority")], ids=["timer", "priority"])
def test_message_trimmed_before_a_reset_is_forgotten(bench: Bench) -> None:
    """A cancel of it is answered as for a message that was never stored. It cancels nothing."""
    bench.open()
    bench.apply(YEAR, c.Clock())
    message = bench.put("a", at=YEAR)
    bench.ack(bench.one(at=YEAR).token, at=YEAR)
    bench.trim(at=YEAR)
    assert bench.cancel(message, at=YEAR) == ("too_late", "gone")
    set_back(bench, 3000)
    assert bench.cancel(message, at=4000) == ("not_found", None)
    assert bench.lease(at=YEAR) == []


def test_reset_reply_reports_the_state_found() -> None:
    bench = poisoned()
    answer = bench.apply(3000, c.ClockReset(T + 3000))[0]
    assert answer == {"outcome": "begun", "floor_ms": T + YEAR, "now_ms": T + 3000, "clock_epoch": 1}
    again = bench.apply(3001, c.ClockReset(T + 3001))[0]
    assert (again["outcome"], again["clock_epoch"]) == ("under_way", 1)
    while bench.status().reset is not None:
        bench.upkeep(3002)
    late = bench.apply(9000, c.ClockReset(T + 3000))[0]
    assert (late["outcome"], late["clock_epoch"], late["now_ms"]) == ("not_ahead", 1, T + 9000)


def test_reset_of_a_floor_that_is_hardly_ahead_changes_nothing() -> None:
    bench = Bench()
    bench.apply(1000, c.Clock())
    assert bench.apply(1000, c.ClockReset(T + 1))[0]["outcome"] == "not_ahead"
    assert bench.machine.clock_epoch == 0


def test_reset_of_a_compacted_topic_is_refused() -> None:
    bench = KeyBench()
    bench.apply(YEAR, c.Clock())
    refusal = bench.apply(0, c.ClockReset(T))[0]
    assert isinstance(refusal, InvalidRequest) and "compacted" in str(refusal)
    assert (bench.machine.now_ms, bench.machine.clock_epoch) == (T + YEAR, 0)


def test_commands_are_refused_during_a_reset() -> None:
    bench = poisoned()
    bench.apply(0, c.ClockReset(T))
    asked = (
        c.Append(batch_of(["a"])),
        c.Lease("g", T, [c.Grant("c", 1, 1000)]),
        c.Ack([(1, None)]),
        c.OpenGroup("h", "earliest"),
        c.Seek("g", "earliest"),
        c.Cancel([by_key("k")]),
    )
    results = bench.apply(0, *asked)
    assert all(isinstance(result, Unavailable) and "being set back" in str(result) for result in results)
    assert bench.apply(YEAR, c.Clock(), c.Touch(["g"])) == [None, None]
    assert (bench.machine.now_ms, bench.status().next_expiry_ms) == (T, None)


def test_delayed_message_comes_at_its_own_time() -> None:
    bench = poisoned()
    bench.put("one by one", at=1000, due=60_000, unique="a")
    bench.append("batch", at=1000, due=[70_000])
    bench.append("delay", at=1000, due=[80_000], relative=True)
    bench.append("beyond", at=1000, due=[YEAR + 5])
    set_back(bench, 3000, restart=True)
    came = {}
    for at in (3500, 59_000, 60_000, 69_000, 70_000, 80_999, 81_000, YEAR + 4, YEAR + 5):
        came[at] = bench.values(bench.lease(at=at, ms=2 * YEAR))
    assert {at: values for at, values in came.items() if values} == {
        60_000: ["one by one"],
        70_000: ["batch"],
        81_000: ["delay"],
        YEAR + 5: ["beyond"],
    }


def test_delay_asked_for_under_the_wrong_clock_counts_from_the_reset() -> None:
    bench = poisoned()
    bench.append("now", "later", at=YEAR, due=[0, 5000], relative=True)
    bench.send("ready", at=YEAR, unique=["k"])
    set_back(bench, 3000)
    assert bench.values(bench.lease(at=3001)) == ["now", "ready"]
    assert bench.lease(at=7999) == []
    assert bench.values(bench.lease(at=8001)) == ["later"]


def test_ids_lead_to_messages_that_were_placed_again() -> None:
    bench = poisoned()
    base, _ = bench.append("a", "b", at=1000)
    kept = bench.put("c", at=1000, unique="k")
    set_back(bench, 3000)
    assert bench.cancel(offsets.shift(base, 1), at=4000)[0] == "cancelled"
    assert bench.cancel(by_key("k"), at=4000) == ("cancelled", kept)
    assert bench.values(bench.lease(at=4000)) == ["a"]


def test_message_acked_too_early_is_not_redelivered_after_reset() -> None:
    bench = Bench()
    bench.open("g")
    bench.open("h")
    bench.append("soon", due=[60_000])
    lease = bench.one(at=YEAR, group="g")
    bench.ack(lease.token, at=YEAR)
    set_back(bench, 3000, restart=True)
    assert bench.lease(at=4000, group="h") == []
    assert bench.lease(at=60_000, group="g") == []
    assert bench.values(bench.lease(at=60_000, group="h")) == ["soon"]
    assert bench.rows(rows.GAPS) == []
    bench.seek("earliest", at=61_000, group="g")
    bench.append("next", at=61_000)
    assert "next" in bench.values(bench.lease(at=61_000, group="g"))


def test_leases_end_and_their_messages_are_ready_without_the_attempt() -> None:
    bench = Bench()
    bench.open()
    bench.append("a")
    lease = bench.one(at=YEAR)
    set_back(bench, 3000)
    assert bench.ack(lease.token, at=3100) == []
    again = bench.one(at=3100)
    assert (bench.values([again]), again.attempt, again.deadline_ms) == (["a"], 1, T + 33_100)


def test_back_off_counts_from_when_it_began() -> None:
    bench = Bench()
    bench.open()
    bench.append("before", "under")
    one, other = (bench.one(limit=1, at=1000, ms=2 * YEAR) for _ in range(2))
    bench.nack(one.token, at=1000, delay=20_000)
    bench.nack(other.token, at=YEAR, delay=30_000)
    set_back(bench, 3000)
    times = {bench.values([bench.one(at=at)])[0]: at for at in (21_000, 33_000)}
    assert times == {"before": 21_000, "under": 33_000}
    assert bench.lease(at=34_000) == []


def test_move_of_waiting_message_keeps_its_time() -> None:
    bench = Bench()
    bench.open()
    base, _ = bench.append("a")
    bench.nack(bench.one(at=1000).token, at=1000, delay=20_000)
    bench.apply(YEAR, c.Clock())
    assert bench.move(base, 50_000, at=2000)[0] == "moved"
    set_back(bench, 3000)
    assert bench.lease(at=49_999) == []
    assert bench.values(bench.lease(at=50_000)) == ["a"]


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize(("to", "relative", "comes"), [(HOUR, False, HOUR), (5000, True, 8000)])
def test_move_of_waiting_message_overrides_its_own_time(to: int, relative: bool, comes: int, trimmed: bool) -> None:
    """Consumers got the message too early and returned it. The last request of its producer decides."""
    bench = Bench()
    for group in "gh":
        bench.open(group)
    base = bench.append("a", at=1000, due=[2 * HOUR])
    for group in "gh":
        bench.nack(bench.one(group=group, at=YEAR).token, at=YEAR, delay=3 * HOUR)
    if trimmed:
        bench.trim(at=YEAR + HOUR)
    assert bench.rows(rows.LOG) == [] or not trimmed
    assert bench.move(base, to, at=YEAR, relative=relative)[0] == "moved"
    set_back(bench, 3000, restart=True)
    for group in "gh":
        assert bench.lease(group=group, at=comes - 1) == []
        assert bench.values(bench.lease(group=group, at=comes)) == ["a"]


def test_waiting_message_moves_before_its_position() -> None:
    """A reset put the message at the first time that its producer requested."""
    bench = Bench()
    for group in "gh":
        bench.open(group)
    base = bench.append("a", at=1000, due=[2 * HOUR])
    for group in "gh":
        bench.nack(bench.one(group=group, at=YEAR).token, at=YEAR, delay=3 * HOUR)
    set_back(bench, 3000, restart=True)
    assert bench.move(base, HOUR, at=4000)[0] == "moved"
    for group in "gh":
        assert bench.lease(group=group, at=HOUR - 1) == []
        assert bench.values(bench.lease(group=group, at=HOUR)) == ["a"]


def test_dead_letters_stay_and_can_be_redriven() -> None:
    bench = Bench(max_attempts=1)
    bench.open()
    bench.append("a")
    bench.apply(YEAR, c.Clock())
    bench.nack(bench.one(at=YEAR).token, at=YEAR)
    set_back(bench, 3000, restart=True)
    (dead,) = bench.dead()
    assert dead.dead_ms == T + 3000
    assert bench.job("redrive", at=4000)[1] == 1
    assert bench.values(bench.lease(at=4000)) == ["a"]


def test_unique_key_is_kept_for_its_window_and_no_longer() -> None:
    bench = Bench(dedup_window="1h")
    bench.open()
    bench.put("a", unique="k", at=YEAR)
    bench.ack(bench.one(at=YEAR).token, at=YEAR)
    set_back(bench, 3000)
    refused = bench.send("b", unique=["k"], at=3_600_000)
    assert isinstance(refused, Stored) and refused.refused
    bench.trim(at=3_603_001)
    assert not bench.send("b", unique=["k"], at=3_603_001).refused


def test_repeated_cancel_is_answered_as_long_as_without_reset() -> None:
    bench = poisoned()
    message = bench.put("a", unique="k", at=1000)
    bench.cancel(message, at=1000)
    set_back(bench, 3000)
    assert bench.cancel(message, at=3000 + CANCEL_MEMORY_MS - 1)[0] == "cancelled"
    bench.trim(at=3000 + CANCEL_MEMORY_MS)
    assert bench.rows(rows.FORGET) == []


def test_producer_has_its_week_and_its_answers() -> None:
    bench = poisoned()
    batch = c.Append(batch_of(["a"]), 77, 1, 1)
    first = bench.apply(1000, batch)[0]
    set_back(bench, 3000)
    assert bench.apply(4000, batch)[0] == first
    assert bench.machine.producers.next_ms == T + 3000 + FIXED.producer_ttl_ms


def test_hold_lasts_as_long_as_any_may() -> None:
    bench = poisoned()
    bench.apply(2 * YEAR, c.Hold("spark", offsets.LAST, 3_600_000))
    set_back(bench, 3000)
    (hold,) = bench.machine.holds.all
    assert hold.until_ms == T + 3000 + FIXED.hold_most_ms
    assert hold.offset < offsets.pack(T + 3000, 0, 0, 0)


def test_groups_and_jobs_are_of_no_later_time() -> None:
    bench = poisoned()
    bench.apply(1000, c.Touch(["g"]))
    bench.append("a", due=[YEAR + 1000], at=1000)
    job_id = bench.start_job("cancel", at=1000)
    set_back(bench, 3000)
    assert bench.machine.groups.named("g").touched_ms == T + 3000
    shown = bench.machine.jobs.find(job_id).shown()
    assert (shown["state"], shown["finished_ms"]) == ("stopped", T + 3000)


def test_running_seek_finishes_before_a_reset() -> None:
    bench = Bench(max_attempts=1, delete_on_ack=False, retain="30d")
    bench.open()
    bench.append("a", at=YEAR)
    bench.nack(bench.one(at=YEAR).token, at=YEAR)
    bench.apply(YEAR, c.Seek("g", "earliest"))
    set_back(bench, 3000, restart=True)
    assert bench.dead() == []
    assert bench.values(bench.lease(at=4000)) == ["a"]


def test_order_of_a_key_stays() -> None:
    bench = poisoned(ordering="key")
    for value in "abc":
        bench.put(value, key="k", at=1000)
    set_back(bench, 3000, restart=True)
    came = []
    for at in (4000, 4001, 4002):
        lease = bench.one(at=at)
        came += bench.values([lease])
        bench.ack(lease.token, at=at)
    assert came == ["a", "b", "c"]


def test_trimming_goes_on_after_a_reset() -> None:
    bench = Bench()
    bench.open()
    bench.append("a", "b", at=YEAR)
    bench.ack(bench.one(limit=1, at=YEAR).token, at=YEAR)
    set_back(bench, 3000)
    bench.ack(bench.one(at=4000).token, at=4000)
    bench.trim(at=4000)
    assert bench.rows(rows.LOG) == []
    assert (bench.status().messages, bench.status().bytes, bench.status().later) == (0, 0, 0)


def test_step_in_the_entry_that_began_a_reset_changes_nothing() -> None:
    bench = poisoned()
    results = bench.apply(3000, c.Append(batch_of(["a"])), c.ClockReset(T + 3000), c.Upkeep(), c.Upkeep())
    assert results[1]["outcome"] == "begun"
    while bench.status().reset is not None:
        bench.upkeep(3001)
    assert bench.values(bench.lease(at=4000)) == ["a"]


def test_entry_with_the_last_step_goes_on_by_its_own_time() -> None:
    bench = poisoned()
    bench.apply(3000, c.ClockReset(T + 3000))
    while True:  # the last step is not known in advance
        stored = bench.apply(60_000, c.Upkeep(), c.Append(batch_of(["a"], due=[5000], relative=True)))[1]
        if not isinstance(stored, Unavailable):
            break
    assert bench.machine.now_ms == T + 60_000
    assert bench.lease(at=64_999) == []
    assert bench.values(bench.lease(at=65_000)) == ["a"]


@pytest.mark.parametrize(
    ("due", "relative", "comes"),
    [
        (YEAR + 5000, False, YEAR + 5000),
        (500, False, 500),
        (500, True, 3500),
        (None, False, 3000),
    ],
)
def test_blocked_message_of_the_wrong_clock_copied_aside(due: int | None, relative: bool, comes: int) -> None:
    """The message comes at its chosen time, or after its delay, which counts from the reset."""
    bench = Bench(ordering="key")
    for group in "gh":
        bench.open(group)
    bench.put("a", key="k")
    bench.apply(YEAR, c.Append(batch_of(["b"], keys=["k"], due=due and [due], relative=relative), split=True))
    blocking = bench.one(at=YEAR + 5000, ms=HOUR)
    for _ in "ab":
        bench.ack(bench.one(group="h", at=YEAR + 5000).token, at=YEAR + 5000)
    bench.nack(blocking.token, at=YEAR + 5000, delay=HOUR)
    bench.trim(at=YEAR + HOUR - 1)
    assert bench.rows(rows.LOG) == [] and len(bench.rows(rows.KEPT)) == 2
    set_back(bench, 3000, restart=True)
    again = bench.one(at=3000 + HOUR)
    assert bench.values([again]) == ["a"]
    bench.ack(again.token, at=3000 + HOUR)
    if comes > 3000 + HOUR:
        assert bench.lease(at=comes - 1) == []
    assert bench.values(bench.lease(at=max(comes, 3000 + HOUR))) == ["b"]


@pytest.mark.parametrize(("due", "comes"), [([1500, YEAR + 5000], YEAR + 5000), ([1500, 2000], HOUR)])
def test_kept_message_of_a_batch_is_delivered_at_its_own_time(due: list[int], comes: int) -> None:
    bench = Bench()
    for group in "gh":
        bench.open(group)
    wrong = YEAR + 60_000
    bench.append("a", "b", at=wrong, due=due)
    lease = bench.one(at=wrong)
    bench.nack(lease.token, at=wrong, delay=HOUR)
    bench.ack(bench.one(group="h", at=wrong).token, at=wrong)
    bench.trim(at=wrong + HOUR - 1)
    assert bench.rows(rows.LOG) == []
    set_back(bench, 0, restart=True)
    assert sorted(bench.values(bench.lease(at=HOUR, ms=YEAR))) == ["a", "b"][: 2 if comes == HOUR else 1]
    assert bench.lease(at=comes - 1, ms=YEAR) == []
    assert bench.values(bench.lease(at=comes)) == ["b"][: comes > HOUR]


def test_copied_waiting_messages_expire_by_their_own_ttls() -> None:
    """The rule includes messages whose offsets a reset makes consecutive."""
    bench = Bench()
    bench.open()
    wrong = YEAR + 60_000
    bench.apply(wrong, c.Append(batch_of(["a", "b", "c"], ttls=[None, HOUR, 3 * HOUR]), split=True))
    for lease in bench.lease(at=wrong):
        bench.nack(lease.token, at=wrong, delay=2 * HOUR)
    bench.trim(at=wrong + HOUR - 1)
    assert bench.rows(rows.LOG) == [] and len(bench.rows(rows.KEPT)) == 3
    set_back(bench, 3000, restart=True)
    bench.apply(3000 + HOUR, c.Expire())
    assert [dead.fields[Column.VALUE] for dead in bench.dead()] == [b"b"]
    assert sorted(bench.values(bench.lease(at=3000 + 2 * HOUR))) == ["a", "c"]


@pytest.mark.parametrize("trimmed", [False, True])
def test_message_waiting_before_its_time_does_not_expire_early(trimmed: bool) -> None:
    """A consumer got the message too early and returned it. Its ttl counts from its due time, with or without a
    copy."""
    bench = Bench()
    bench.open()
    bench.apply(1000, c.Append(batch_of(["a"], due=[2 * HOUR], ttls=[HOUR]), split=True))
    bench.nack(bench.one(at=2 * HOUR).token, at=2 * HOUR, delay=HOUR // 2)
    if trimmed:
        bench.trim(at=2 * HOUR + 61_000)
    assert (bench.rows(rows.LOG) == []) == trimmed
    set_back(bench, 3000, restart=True)
    bench.apply(2 * HOUR - 1, c.Expire())
    assert bench.dead() == [] and bench.lease(at=2 * HOUR - 1) == []
    assert bench.values(bench.lease(at=2 * HOUR)) == ["a"]


def test_time_of_kept_message_survives_two_resets() -> None:
    bench = Bench()
    bench.open()
    bench.append("a", at=1000, due=[2 * HOUR])
    for now in (3000, HOUR):
        bench.nack(bench.one(at=3 * HOUR).token, at=3 * HOUR, delay=0)
        bench.trim(at=3 * HOUR + 61_000)
        assert bench.rows(rows.LOG) == []
        set_back(bench, now, restart=True)
    assert bench.lease(at=2 * HOUR - 1) == []
    assert bench.values(bench.lease(at=2 * HOUR)) == ["a"]


def test_bytes_of_a_batch_of_which_some_was_cancelled_are_counted_to_the_last() -> None:
    bench = Bench()
    bench.open()
    for count in (5, 6, 7):
        base, _ = bench.append(*"abcdefg"[:count], at=YEAR)
        bench.cancel(base, at=YEAR)
    set_back(bench, 3000)
    assert bench.status().bytes == sum(len(row) for _, row in bench.rows(rows.LOG))


@pytest.mark.parametrize("other_waits", [False, True])
def test_kept_message_blocked_by_its_key_is_not_delivered_early(other_waits: bool) -> None:
    """The log was trimmed beyond the message. In one group it is blocked in a separate row. The other group acked it,
    or it waits there."""
    bench = Bench(ordering="key")
    for group in "gh":
        bench.open(group)
    bench.put("a", key="k")
    bench.put("b", key="k", due=YEAR - 1000)
    blocking = bench.one(at=YEAR, ms=HOUR)
    bench.ack(bench.one(group="h", at=YEAR).token, at=YEAR)
    others = bench.one(group="h", at=YEAR)
    if other_waits:
        bench.nack(others.token, at=YEAR, delay=2 * HOUR)
    else:
        bench.ack(others.token, at=YEAR)
    bench.nack(blocking.token, at=YEAR, delay=HOUR)
    bench.trim(at=YEAR + HOUR - 1)
    assert bench.rows(rows.LOG) == []
    set_back(bench, 3000, restart=True)
    assert bench.status().messages == len(bench.rows(rows.LOG)) == 1
    again = bench.one(at=3000 + HOUR)
    assert bench.values([again]) == ["a"]
    bench.ack(again.token, at=3000 + HOUR)
    for group in "gh":
        assert bench.lease(group=group, at=YEAR - 1001) == []
    came = bench.one(at=YEAR - 1000)
    assert bench.values([came]) == ["b"]
    bench.ack(came.token, at=YEAR - 1000)
    lease = bench.lease(group="h", at=YEAR - 1000)
    assert bench.values(lease) == ["b"] * other_waits
    for one in lease:
        bench.ack(one.token, at=YEAR - 1000)
    bench.trim(at=YEAR)
    assert bench.status().messages == 0
    assert bench.rows(rows.LOG) == bench.rows(rows.KEPT) == bench.rows(rows.BLOCKED) == bench.rows(rows.GAPS) == []


@pytest.mark.parametrize(
    ("by_move", "relative", "comes"),
    [(True, True, HOUR), (True, False, 2 * HOUR), (False, True, HOUR), (False, False, 2 * HOUR)],
)
def test_kept_message_requested_under_wrong_clock_gets_a_new_time(by_move: bool, relative: bool, comes: int) -> None:
    """A delay counts from the reset. A chosen time stays."""
    bench = Bench()
    for group in "gh":
        bench.open(group)
    to = 5000 if relative else 2 * HOUR
    if by_move:
        bench.move(bench.put("a", due=2 * YEAR), to, at=YEAR, relative=relative)
    else:
        bench.apply(YEAR, c.Append(batch_of(["a"], due=[to], relative=relative), split=True))
    bench.nack(bench.one(at=YEAR + 5000).token, at=YEAR + 5000, delay=HOUR)
    bench.ack(bench.one(group="h", at=YEAR + 5000).token, at=YEAR + 5000)
    bench.trim(at=YEAR + HOUR)
    assert bench.rows(rows.LOG) == []
    set_back(bench, 0, restart=True)
    assert bench.lease(at=comes - 1) == []
    assert bench.values(bench.lease(at=comes)) == ["a"]


def test_redrive_of_a_message_that_died_too_early_waits_for_its_time() -> None:
    bench = Bench(max_attempts=1)
    bench.open()
    bench.append("a", due=[YEAR - 1000], at=1000)
    bench.nack(bench.one(at=YEAR).token, at=YEAR)
    set_back(bench, 3000)
    assert bench.job("redrive", at=4000)[1] == 1
    assert bench.lease(at=YEAR - 1001) == []
    assert bench.values(bench.lease(at=YEAR - 1000)) == ["a"]


def test_group_end_respects_key_order_before_messages_are_placed_again() -> None:
    """A restarted replica has the same rows. A message that is blocked in another group keeps its unique key."""
    benches = [Bench(ordering="key"), Bench(ordering="key")]
    for bench in benches:
        for group in "gh":
            bench.open(group)
        bench.put("a", key="k", at=YEAR)
        bench.put("b", key="k", unique="b", at=YEAR)
        for group in "gh":
            bench.nack(bench.one(group=group, at=YEAR).token, at=YEAR, delay=HOUR)
        bench.trim(at=YEAR + HOUR - 1)
        assert bench.rows(rows.LOG) == []
        bench.apply(YEAR + HOUR - 1, c.DropGroup("h"))
        bench.apply(3000, c.ClockReset(T + 3000))
    while benches[0].status().reset is not None:
        benches[1].restart()
        for bench in benches:
            bench.upkeep(3000)
        assert benches[0].everything() == benches[1].everything()
    assert len(benches[0].rows(rows.KEYED_UNIQUE)) == 1


def test_expiry_skips_a_bounded_number_of_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "EXPIRE_MESSAGES", 2)
    bench = Bench(ttl="10s")
    for group in "gh":
        bench.open(group)
    for value in "abcde":
        bench.put(value, due=50_000)
    bench.ack(bench.one(at=55_000).token, at=55_000)
    set_back(bench, 3000)
    group = bench.machine.groups.named("g")
    left = [key[1:] for key, _ in bench.rows(rows.LOG)]
    for passed in (2, 4, 5):
        bench.expire(at=60_000)
        assert group.cursor == left[passed - 1]
    assert bench.dead("g") == []


@pytest.mark.parametrize("restart", [False, True])
def test_waiting_messages_of_batch_survive_cancels_of_the_others(restart: bool) -> None:
    bench = Bench()
    bench.open()
    names = [f"m{at}" for at in range(16)]
    base, count = bench.append(*names, due=[HOUR] * len(names))
    taken = bench.one(limit=8, at=2 * HOUR)
    bench.nack(taken.token, at=2 * HOUR, delay=2 * HOUR)
    set_back(bench, 3000)
    assert [bench.cancel(offsets.shift(base, at), at=4000)[0] for at in range(8, count)] == ["cancelled"] * 8
    if restart:
        bench.restart()
    came = []
    for at in (HOUR, 2 * HOUR, 3 * HOUR):
        bench.upkeep(at)
        came += bench.values(bench.lease(at=at))
    assert came == names[:8]


def test_rest_of_partly_delivered_batch_is_delivered_at_its_time() -> None:
    bench = Bench()
    bench.open()
    names = [f"m{at}" for at in range(8)]
    bench.append(*names, due=[HOUR] * len(names))
    bench.ack(bench.one(limit=3, at=2 * HOUR).token, at=2 * HOUR)
    set_back(bench, 3000)
    assert bench.lease(at=HOUR - 1) == []
    assert bench.values(bench.lease(at=HOUR)) == names[3:]


def test_batch_at_its_wanted_time_stays() -> None:
    bench = Bench()
    bench.open()
    bench.apply(YEAR, c.Clock())
    bench.append(*"abcdefgh", at=YEAR, due=[YEAR] * 8)
    set_back(bench, 3000)
    kinds = {value[0] for _, value in bench.rows(rows.LOG)}
    assert kinds == {rows.KIND_BATCH}


def test_messages_keep_their_own_attempts_in_a_reset() -> None:
    """One message waits for its next attempt, one is leased, one is delayed."""
    bench = poisoned()
    for name, due in (("waiting", None), ("leased", None), ("delayed", YEAR + HOUR)):
        bench.put(name, at=YEAR, due=due, attempts=7)
    waiting, leased = bench.lease(1, at=YEAR), bench.lease(1, at=YEAR)
    bench.nack(waiting[0].token, at=YEAR, delay=HOUR)
    assert leased
    set_back(bench, 3000, restart=True)
    again = [*bench.lease(at=3000), *bench.lease(at=3000 + HOUR), *bench.lease(at=YEAR + HOUR)]
    assert sorted(bench.values(again)) == ["delayed", "leased", "waiting"]
    assert {lease.retry for lease in again} == {RetryRules(7)}


def test_dead_messages_are_removed_by_their_corrected_times_after_a_reset() -> None:
    bench = Bench(max_attempts=1, dead_retention="1h")
    bench.open()
    bench.append("early")
    bench.nack(bench.one(at=1).token, at=1)
    bench.apply(YEAR, c.Clock())
    bench.append("late", at=YEAR)
    bench.nack(bench.one(at=YEAR).token, at=YEAR)
    set_back(bench, 3000, restart=True)
    assert sorted(message.dead_ms - T for message in bench.dead()) == [1, 3000]
    bench.trim(at=HOUR + 1)
    assert [message.dead_ms - T for message in bench.dead()] == [3000]
    bench.trim(at=HOUR + 20_000)
    assert bench.dead() == [] and bench.rows(rows.DEATH) == []


def test_pause_after_a_removal_is_set_back_by_a_reset() -> None:
    bench = Bench(max_attempts=1, max_dead_letters=1)
    bench.open()
    bench.apply(YEAR, c.Clock())
    for _ in range(2):
        bench.append("m", at=YEAR)
        bench.nack(bench.one(at=YEAR).token, at=YEAR)
    bench.trim(at=YEAR)
    assert len(bench.dead()) == 1
    set_back(bench, 3000)
    bench.append("m", at=4000)
    bench.nack(bench.one(at=4000).token, at=4000)
    bench.trim(at=20_000)
    assert len(bench.dead()) == 1


def test_pauses_by_a_wrong_clock_are_as_long_after_a_reset() -> None:
    bench = RankedBench("fair")
    bench.open()
    bench.add("a", tenant="acme")
    bench.add("b", tenant="beta")
    bench.apply(0, c.PausePart("g", "acme", T + HOUR), c.PausePart("g", "ever", None))
    (lease,) = bench.lease(1, at=1)
    bench.apply(YEAR, c.Clock())
    until_ms = T + YEAR + 2 * HOUR
    held = (lease.token, lease.ranges[0].base)
    bench.apply(
        YEAR, c.PauseByLease([(*held, "tenant", until_ms, "g")]), c.PauseByLease([(*held, "group", until_ms, "g")])
    )
    set_back(bench, 3000, restart=True)
    group = bench.machine.groups.named("g")
    assert group.paused_until_ms == T + 3000 + 2 * HOUR
    ends = {"beta": T + 3000 + 2 * HOUR}
    assert group.pauses.ends == ends
    bench.restart()
    assert bench.machine.groups.named("g").pauses.ends == ends
    assert bench.values(bench.lease(at=3000 + 2 * HOUR)) == ["a", "b"]


@pytest.mark.parametrize("restart", [False, True])
def test_ready_queue_that_is_read_in_part_delivers_all_messages_after_a_reset(restart: bool) -> None:
    bench = RankedBench()
    bench.open()
    bench.add("a", at=0)
    bench.add("b", at=0)
    bench.add("c", at=0)
    later = [f"{number:02}" for number in range(2 * queue_entries.HEAD_ENTRIES)]
    for number, name in enumerate(later):
        bench.add(name, at=YEAR + number)
    assert bench.take(1, at=YEAR + 100) == ["a"]
    if restart:
        bench.restart()
    # After a restart, this lease reads only the first messages of the queue, and some of those of the wrong clock.
    assert bench.take(1, at=YEAR + 100) == ["b"]
    set_back(bench, 3000)
    assert bench.take(100, at=9000) == ["c", *later]


def test_spilled_message_of_a_paused_tenant_is_recalled_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "spill_from", 0)
    bench = RankedBench("fair")
    bench.open()
    bench.add("a", tenant="acme")
    (lease,) = bench.lease(at=1)
    bench.nack(lease.token, at=2)
    bench.apply(3, c.PausePart("g", "acme", offsets.U48_MAX))
    # The spilled message is due, so this lease postpones it, by the wrong clock.
    assert bench.lease(at=YEAR) == []
    assert bench.machine.groups.named("g").spilled.next_ms == T + YEAR + spilling.POSTPONED_MS
    set_back(bench, 3000)
    bench.apply(4000, c.PausePart("g", "acme", None))
    assert bench.values(bench.lease(at=5000)) == ["a"]


def test_pauses_that_end_before_the_floor_of_a_wrong_clock_are_over_after_a_reset() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.put("a", key="k")
    bench.put("b", at=YEAR, due=YEAR + 4, key="l")
    bench.apply(YEAR, c.PausePart("g", b"k", T + YEAR + 3))
    bench.lease(at=YEAR, ahead=5)  # this raises the floor above the time of the entry
    bench.apply(YEAR, c.PauseGroup("g", True, T + YEAR + 3))
    set_back(bench, 1000)
    assert bench.values(bench.lease(at=2000)) == ["a"]


def test_ended_pauses_that_are_not_removed_yet_are_over_after_a_reset() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.apply(YEAR, *[c.PausePart("g", b"%d" % number, T + YEAR + 1000) for number in range(3000)])
    bench.apply(YEAR + 1001, c.Clock())
    assert bench.machine.groups.named("g").pauses.keys == 2000
    set_back(bench, 1000)
    for _ in range(3):
        bench.apply(2000, c.Clock())
    assert bench.machine.groups.named("g").pauses.keys == 0


def test_clock_reset_keeps_the_key_of_a_pause() -> None:
    bench = Bench(ordering="key")
    bench.open()
    bench.apply(YEAR, c.PausePart("g", b"k", T + YEAR + HOUR))
    set_back(bench, 3000, restart=True)
    (paused,), _ = PartitionQueries(bench.machine, bench.view).paused_parts("g", 10)
    assert (paused.key, paused.until_ms) == (b"k", T + 3000 + HOUR)
