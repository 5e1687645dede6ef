"""Tests of sweeps: settled messages leave the log although an earlier message waits forever for its turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sandq.partition.log import sweep, trim
from tests.support.partition.bench import T, by_key
from tests.support.partition.ranked_bench import RankedBench

ROUNDS = 12
EACH = 20


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> RankedBench:
    """A group `g` whose first message waits forever for its turn."""
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 10)
    monkeypatch.setattr(sweep, "SWEEP_ROWS", 7)
    monkeypatch.setattr(trim, "PIN_MS", 1000)
    bench = RankedBench(dedup_window="1h", max_attempts=1)
    bench.open()
    bench.add("last", priority=9)
    return bench


def log(bench: RankedBench) -> list[bytes]:
    return [key[1:] for key, _ in bench.rows(b"m")]


@pytest.mark.parametrize("is_alone", [True, False])
def test_log_stays_small_while_one_message_is_never_delivered(bench: RankedBench, is_alone: bool) -> None:
    most = 0
    for turn in range(ROUNDS):
        names = [f"{turn}/{number}" for number in range(EACH)]
        for name in names if is_alone else ():
            bench.add(name, priority=1, at=turn)
        if not is_alone:
            bench.add(*names, priority=[number % 2 for number in range(EACH)], at=turn)
        assert len(bench.take(EACH, at=turn)) == EACH
        bench.trim(turn)
        most = max(most, len(log(bench)))
    assert most <= 2 * EACH + 1
    assert bench.status().messages <= 2 * EACH + 1
    assert bench.take(9, at=ROUNDS) == ["last"]
    bench.trim(ROUNDS)
    assert log(bench) == []


def test_messages_that_another_group_needs_are_not_swept(bench: RankedBench) -> None:
    bench.open("h")
    names = [str(number) for number in range(30)]
    for name in names:
        bench.add(name)
    assert bench.take(30) == names
    bench.trim()
    assert len(log(bench)) == 31
    assert bench.take(10, group="h") == names[:10]
    held = bench.one(group="h", limit=1, consumer="d")
    assert bench.take(10, group="h") == names[11:21]
    bench.trim()
    assert len(log(bench)) <= 31 - 10
    assert bench.values([held]) == names[10:11]
    assert bench.take(30, group="h") == [*names[21:], "last"]


def test_unique_key_of_swept_message_refuses_others_for_its_window(bench: RankedBench) -> None:
    offset = bench.add("a", unique=["u"])[0]
    swept(bench)
    assert offset not in log(bench)
    assert bench.add("b", unique=["u"]) == [offset]
    assert bench.cancel(by_key("u")) == ("too_late", "gone")


def test_id_of_moved_message_that_was_swept_is_known_for_a_while(bench: RankedBench) -> None:
    offset = bench.add("a", due=[5000])[0]
    moved = bench.move(offset, 0)
    assert moved[0] == "moved"
    swept(bench)
    assert moved[1] not in log(bench)
    assert bench.cancel(offset) == ("too_late", "gone")
    bench.trim(3_600_000)
    assert bench.rows(b"i") == []


def test_message_cancelled_among_swept_ones_is_reported_as_cancelled(bench: RankedBench) -> None:
    offsets = bench.add("a", "b", "c")
    assert bench.cancel(offsets[1])[0] == "cancelled"
    swept(bench)
    assert offsets[0] not in log(bench)
    assert bench.cancel(offsets[1])[0] == "cancelled"
    assert bench.cancel(offsets[0]) == ("too_late", "gone")


def test_bytes_of_swept_batches_are_subtracted(bench: RankedBench) -> None:
    batches = [bench.add("a" * 50 * size, "b", "c", priority=1) for size in range(3)]
    for cancelled, batch in enumerate(batches):
        assert [bench.cancel(offset)[0] for offset in batch[:cancelled]] == ["cancelled"] * cancelled
    assert len(bench.take(4)) == 4
    swept(bench)
    assert not {*log(bench)} & {batch[0] for batch in batches}
    assert bench.take(100) == ["last"]
    bench.trim()
    assert (log(bench), bench.machine.log.state.bytes) == ([], 0)


def test_dead_message_that_was_swept_is_redriven(bench: RankedBench) -> None:
    offset = bench.add("dead")[0]
    bench.nack(bench.one(limit=1).token)
    swept(bench)
    assert offset not in log(bench)
    assert bench.job("redrive") == (1, 1, 0)
    assert bench.take(1) == ["dead"]


def test_leased_message_that_was_copied_aside_is_swept_and_lives(bench: RankedBench) -> None:
    offset = bench.add("held")[0]
    lease = bench.one(limit=1, ms=600_000)
    swept(bench, at=2000)
    assert offset not in log(bench)
    bench.restart()
    assert bench.nack(lease.token, delay=0, at=2000) is None
    assert len(bench.dead()) == 1


def test_step_is_bounded_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed row may have very many messages and few bytes."""
    monkeypatch.setattr(sweep, "LEAST_SETTLED", 10)
    monkeypatch.setattr(sweep, "SWEEP_MESSAGES", 10)
    bench = RankedBench()
    bench.open()
    bench.add("last", priority=9)
    for batch in range(5):
        bench.add(*[f"{batch}/{number}" for number in range(8)])
    bench.add(*[str(number) for number in range(30)])
    assert len(bench.take(70)) == 70
    left = [len(log(bench))]
    while bench.status().upkeep_ms == T:
        bench.upkeep()
        left.append(len(log(bench)))
    # Rows to trim are searched first.
    steps = [before - after for before, after in pairwise(left) if before > after]
    assert steps == [2, 2, 2]
    assert bench.take(9) == ["last"]


@pytest.mark.parametrize("kept", [{"retention": "1h"}, {"delete_on_ack": False, "retain": "1h"}])
def test_kept_messages_are_trimmed_in_order_without_sweep(bench: RankedBench, kept: dict[str, object]) -> None:
    """No sweep runs. Messages that every group finished are trimmed once no earlier message is pending."""
    bench = RankedBench(**kept)
    bench.open()
    bench.add("last", priority=9)
    for number in range(50):
        bench.add(str(number))
    assert len(bench.take(50)) == 50
    hours = 2 * 3_600_000
    for later in (1, 2):
        bench.trim(hours * later)
    assert len(log(bench)) == 51
    assert bench.take(9, at=3 * hours) == ["last"]
    for later in (3, 4, 5):
        bench.trim(hours * later)
    assert log(bench) == []


def swept(bench: RankedBench, at: int = 0) -> None:
    """Ack other messages until all settled messages are swept."""
    bench.add(*[str(number) for number in range(40)], at=at)
    bench.take(39 + 3, at=at)
    bench.trim(at)
    bench.add("z", at=at)
    bench.take(1, at=at)
    for number in range(40):
        bench.add(str(number), at=at)
    bench.take(40, at=at)
    bench.trim(at)
