"""Dead messages that exceed `dead_retention` or `max_dead_letters` are removed, the oldest deaths first."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import Conflict
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.jobs import dead_retention
from sandq.partition.jobs.dead_retention import PAUSE_MS
from sandq.partition.queries.queries import PartitionQueries
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.outbox_bench import HERE, OutboxBench, carry, receiver
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import begin, chunks_of, empty_like, end, put, restored, rows_of

MINUTE = 60_000


def grave(bench: type[Bench] = Bench, **settings: Any) -> Bench:
    """Return a partition whose messages die at their first attempt."""
    made = bench(**{"max_attempts": 1} | settings)
    made.open()
    return made


def kill(bench: Bench, *values: str, at: int = 0, **columns: Any) -> list[bytes]:
    """Append messages, and let them die one after the other, 1 ms apart. Return their offsets."""
    offsets = [bench.put(value, at=at, **columns) for value in values]
    for number, _ in enumerate(values):
        bench.nack(bench.one(at=at + number, limit=1).token, at=at + number, error="boom")
    return offsets


def left(bench: Bench, group: str = "g") -> list[str]:
    """Return the values of the dead messages."""
    return [message.fields[1].decode() for message in bench.dead(group)]


def removed(bench: Bench, group: str = "g") -> int:
    """Return the number of removed messages, and check that a restart keeps it and the time of the next removal."""
    status = bench.status()
    found = status.groups.get(group)
    assert found is not None
    bench.restart()
    again = bench.status()
    loaded = again.groups.get(group)
    assert loaded is not None and (loaded.removed, again.upkeep_ms) == (found.removed, status.upkeep_ms)
    return found.removed


def test_dead_messages_stay_without_the_settings() -> None:
    bench = grave()
    kill(bench, "a")
    bench.trim(at=1)
    assert bench.machine.dead_retention.due_ms(bench.view) is None
    bench.upkeep(at=500_000_000)
    assert left(bench) == ["a"]


def test_message_is_removed_when_its_time_has_passed_and_not_before() -> None:
    bench = grave(dead_retention="1m")
    kill(bench, "a")
    kill(bench, "b", at=30_000)
    bench.trim(at=30_001)
    assert bench.status().upkeep_ms == T + MINUTE
    bench.upkeep(at=MINUTE - 1)
    assert left(bench) == ["a", "b"]
    bench.upkeep(at=MINUTE)
    assert (left(bench), removed(bench)) == (["b"], 1)
    assert bench.status().upkeep_ms == T + 90_000
    bench.trim(at=90_000)
    assert (left(bench), removed(bench)) == ([], 2)
    assert bench.status().upkeep_ms is None or bench.status().upkeep_ms > T + 90_000
    assert bench.rows(rows.DEAD) == bench.rows(rows.DEATH) == []


def test_one_command_removes_what_died_shortly_after() -> None:
    bench = grave(dead_retention="1m")
    kill(bench, "a", "b", "c")
    bench.trim(at=3)
    bench.upkeep(at=MINUTE)
    assert removed(bench) == 1, "b and c have died 1 and 2 ms later"
    assert bench.status().upkeep_ms == T + MINUTE + PAUSE_MS
    bench.upkeep(at=MINUTE + PAUSE_MS - 1)
    assert removed(bench) == 1, "another reason for an upkeep does not shorten the pause"
    bench.upkeep(at=MINUTE + PAUSE_MS)
    assert removed(bench) == 3


def test_oldest_deaths_exceed_the_number() -> None:
    bench = grave(max_dead_letters=2)
    kill(bench, "a", "b")
    bench.trim(at=2)
    assert removed(bench) == 0
    kill(bench, "c", "d", at=10)
    bench.trim(at=20)
    assert left(bench) == ["c", "d"] and removed(bench) == 2


def test_order_of_deaths_decides_not_the_order_of_messages() -> None:
    bench = grave(max_dead_letters=1, max_attempts=2)
    bench.append("first")
    lease = bench.one(at=1)
    bench.append("second", at=2)
    bench.reject(bench.one(at=2).token, at=3)
    bench.reject(lease.token, at=4)
    bench.trim(at=5)
    assert left(bench) == ["first"]


def test_number_is_per_group() -> None:
    bench = grave(max_dead_letters=1)
    bench.open("h")
    kill(bench, "a", "b")
    lease = bench.one(group="h", at=5)
    bench.nack(lease.token, [lease.ranges[0]], at=5)
    bench.trim(at=6)
    assert (left(bench), len(left(bench, "h"))) == (["b"], 1)
    assert (removed(bench), removed(bench, "h")) == (1, 0)


def test_settings_apply_to_messages_that_died_before() -> None:
    bench = grave()
    kill(bench, *"abcde")
    bench.apply(10, c.Configure(bench.settings | {"max_dead_letters": 2}))
    bench.trim(at=10)
    assert left(bench) == ["d", "e"]
    bench.apply(20, c.Configure(bench.settings | {"dead_retention_ms": 100}))
    bench.trim(at=20 + PAUSE_MS)
    assert left(bench) == []


def test_command_removes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_retention, "STEP_MESSAGES", 2)
    bench = grave(dead_retention="1m")
    bench.open("h")
    kill(bench, *"abcde")
    bench.nack(bench.one(group="h", at=5).token, at=5)
    counts = []
    for _ in range(6):
        is_more = bench.apply(2 * MINUTE, c.Upkeep())[0]
        counts.append(removed(bench) + removed(bench, "h"))
    assert counts == [2, 4, 6, 8, 10, 10] and not is_more


def test_command_removes_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_retention, "STEP_BYTES", 1000)
    bench = grave(dead_retention="1m")
    kill(bench, *["x" * 900] * 3)
    assert bench.apply(2 * MINUTE, c.Upkeep())[0] and removed(bench) == 1
    bench.trim(at=2 * MINUTE)
    assert removed(bench) == 3


def test_removal_reads_only_the_oldest_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_retention, "STEP_MESSAGES", 5)
    reads = []
    for count in (20, 400):
        bench = grave()
        bench.send(*["m"] * count)
        for lease in bench.lease(limit=1000, at=1):
            bench.nack(lease.token, at=2)
        bench.trim(at=3)
        bench.apply(10, c.Configure(bench.settings | {"max_dead_letters": 1}))
        bench.status()
        before = bench.stores.reads
        bench.upkeep(at=PAUSE_MS)
        reads.append(bench.stores.reads - before)
        assert removed(bench) == 5
    assert reads[1] <= reads[0] + 2


def test_due_time_costs_no_read_while_nothing_dies() -> None:
    bench = grave(dead_retention="1h")
    kill(bench, "a")
    bench.trim(at=3)
    bench.status()
    before = bench.stores.reads
    for _ in range(5):
        bench.status()
    assert bench.stores.reads == before and bench.machine.dead_retention.knows_due


def test_redriven_and_purged_messages_leave_the_index() -> None:
    bench = grave(dead_retention="1h")
    ids = kill(bench, *"abcd")
    bench.apply(10, c.RedriveDead("g", ids[:1]))
    bench.apply(10, c.PurgeDead("g", ids[1:2]))
    assert left(bench) == ["c", "d"]
    bench.job("purge_dead", at=11)
    assert left(bench) == [] and bench.rows(rows.DEATH) == []
    bench.upkeep(at=2 * 3_600_000)
    assert removed(bench) == 0


def test_seek_delivers_dead_messages_whose_time_has_passed() -> None:
    bench = grave(dead_retention="1m")
    kill(bench, "a", "b")
    bench.trim(at=3)
    cursor = bench.apply(2 * MINUTE, c.Seek("g", "earliest"))[0]
    assert isinstance(cursor, bytes) and bench.machine.dead_retention.due_ms(bench.view) is None
    bench.trim(at=2 * MINUTE)
    assert bench.values(bench.lease(at=2 * MINUTE)) == ["a", "b"] and removed(bench) == 0


def test_rows_of_a_deleted_group_are_deleted() -> None:
    bench = grave(dead_retention="1m")
    kill(bench, "a")
    bench.apply(10, c.DropGroup("g"))
    bench.trim(at=10)
    assert bench.rows(rows.DEAD) == bench.rows(rows.DEATH) == []
    assert bench.machine.dead_retention.due_ms(bench.view) is None


def test_row_of_a_moved_message_expires_after_the_removal() -> None:
    bench = grave(dead_retention="1m")
    offset = bench.put("a", due=1000)
    bench.move(offset, to=500)
    bench.nack(bench.one(at=500).token, at=501)
    bench.trim(at=502)
    assert len(bench.rows(rows.MOVED)) == 1
    bench.trim(at=2 * MINUTE)
    bench.trim(at=60 * MINUTE)
    assert bench.rows(rows.MOVED) == [] and removed(bench) == 1


def test_message_in_the_outbox_is_not_removed_before_it_was_sent() -> None:
    bench, to = OutboxBench(dead_retention="1m", max_dead_letters=1), receiver()
    bench.kill("a", "b")
    assert bench.rows(rows.DEATH) == [] and len(bench.dead()) == 2
    bench.upkeep(at=10 * MINUTE)
    assert len(bench.dead()) == 2 and removed(bench) == 0
    carry(bench, to, at=10 * MINUTE)
    assert bench.dead() == [] and removed(bench) == 0


def test_message_that_the_dead_letter_topic_refused_is_removed() -> None:
    bench = OutboxBench(dead_retention="1m")
    bench.kill("a")
    assert bench.refused(HERE, bench.batches[HERE], at=MINUTE // 2) == "refused"
    assert len(bench.dead()) == 1
    bench.trim(at=MINUTE - 1)
    assert removed(bench) == 0
    bench.trim(at=MINUTE)
    assert removed(bench) == 1 and bench.dead() == []


def test_message_in_the_outbox_counts_under_the_number() -> None:
    bench = OutboxBench(max_dead_letters=2)
    bench.kill("a")
    bench.forward_to(None)
    kill(bench, "b", "c", at=5)
    bench.trim(at=PAUSE_MS)
    assert left(bench) == ["a", "c"]


@pytest.mark.parametrize("bench", [RankedBench, KeyBench])
def test_topics_of_other_kinds(bench: type[Bench]) -> None:
    made = grave(bench, max_dead_letters=1)
    for number in range(3):
        if isinstance(made, KeyBench):
            made.set(f"k{number}", "v", at=number)
        else:
            made.append("m", at=number)
        made.nack(made.one(at=number).token, at=number)
    made.upkeep(at=PAUSE_MS)
    assert removed(made) == 2 and len(made.dead()) == 1


def test_why_does_not_call_a_removed_message_acked() -> None:
    bench = grave(max_dead_letters=1, retention="1h")
    ids = kill(bench, "a", "b")
    bench.trim(at=3)
    found = PartitionQueries(bench.machine, bench.view).why(by_id(ids[0]))
    assert found is not None and "was a dead letter and was removed" in found["groups"][0]["reason"]


def test_restored_partition_removes_its_dead_messages() -> None:
    source = grave(dead_retention="1m")
    kill(source, "a", "b")
    source.trim(at=3)
    made = restored(source)
    made.trim(at=2 * MINUTE)
    assert made.dead() == [] and removed(made) == 2


@pytest.mark.parametrize("damage", ["missing", "more"])
def test_backup_with_a_wrong_index_is_refused(damage: str) -> None:
    source = grave()
    kill(source, "a", "b")
    found = rows_of(source)
    index = next(row for row in found if row[0][:1] == rows.DEATH)
    if damage == "missing":
        found.remove(index)
    else:
        found.append((index[0][:-1] + b"\x10", b""))
    made = empty_like(source)
    begin(made)
    chunks = chunks_of(sorted(found))
    for number, chunk in enumerate(chunks):
        put(made, number, chunk)
    assert isinstance(end(made, len(chunks)), Conflict)


def test_row_of_the_index_without_its_message_is_deleted() -> None:
    bench = grave(dead_retention="1m")
    kill(bench, "a", "b")
    bench.trim(at=2)
    group = bench.machine.groups.named("g")
    stray = rows.death_key(group.group_id, T - 5, bytes(16))
    bench.stores.write([(stray, b"")])
    bench.restart()
    bench.trim(at=2 * MINUTE)
    assert bench.rows(rows.DEATH) == [] and removed(bench) == 2
