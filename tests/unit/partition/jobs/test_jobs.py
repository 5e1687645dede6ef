"""Tests of bulk jobs: idempotent, stopped, with restarts between steps, limited by rate, and never repeating own
moves."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest, NotFound, UnknownGroup
from sandq.partition import commands as c
from sandq.partition.jobs import jobs, redrive
from tests.support.partition.bench import FOREVER_MS, Bench, T
from tests.support.partition.ranked_bench import RankedBench

EVERYTHING: dict[str, Any] = {"from_ms": 0, "until_ms": FOREVER_MS, "key_prefix": None, "dry_run": False}
ID = bytes(range(16))


def _shown(bench: Bench, job_id: bytes) -> dict[str, Any]:
    return bench.machine.jobs.find(job_id).shown()


@pytest.mark.parametrize("restart", [True, False])
def test_job_runs_in_steps_with_restarts(bench: Bench, restart: bool) -> None:
    bench.open()
    for _ in range(5):
        bench.append(*["m"] * 500, due=[60_000] * 500)
    job_id = bench.start_job("cancel")
    done = []
    while _shown(bench, job_id)["state"] == "running":
        bench.upkeep(at=1)
        done.append(_shown(bench, job_id)["done"])
        if restart:
            bench.restart()
    assert done == [1000, 2000, 2500, 2500]
    assert bench.status().messages == bench.status().later == bench.status().bytes == 0
    assert _shown(bench, job_id)["finished_ms"] == T + 1


def test_started_again_it_is_the_same_job(bench: Bench) -> None:
    bench.append("a", due=[1000])
    first = bench.apply(0, c.StartJob(ID, "cancel", EVERYTHING))[0]
    bench.trim(at=1)
    bench.append("b", due=[1000])
    again = bench.apply(2, c.StartJob(ID, "cancel", EVERYTHING))[0]
    assert (first["state"], again["state"], again["done"]) == ("running", "done", 1)
    bench.trim(at=3)
    assert bench.status().messages == 1, "later messages do not belong to the job"


def test_messages_that_come_during_a_job_are_unchanged(bench: Bench) -> None:
    for _ in range(2):
        bench.append(*["m"] * 800, due=[1000] * 800)
    job_id = bench.start_job("cancel")
    bench.upkeep()
    bench.append("new", due=[2000])
    bench.trim()
    assert _shown(bench, job_id)["done"] == 1600
    assert bench.status().messages == 1


def test_stop(bench: Bench) -> None:
    for _ in range(3):
        bench.append(*["m"] * 1000, due=[1000] * 1000)
    job_id = bench.start_job("cancel")
    bench.upkeep()
    stopped = bench.apply(5, c.StopJob(job_id))[0]
    assert (stopped["state"], stopped["done"], stopped["finished_ms"]) == ("stopped", 1000, T + 5)
    bench.restart()
    bench.trim(at=6)
    assert bench.status().messages == 2000
    assert bench.apply(7, c.StopJob(job_id))[0] == stopped


def test_refusals(bench: Bench) -> None:
    (refused,) = bench.apply(0, c.StartJob(ID, "explode", EVERYTHING))
    assert isinstance(refused, InvalidRequest)
    (refused,) = bench.apply(0, c.StartJob(ID, "redrive", {"group": "nobody"}))
    assert isinstance(refused, UnknownGroup)
    (refused,) = bench.apply(0, c.StopJob(ID))
    assert isinstance(refused, NotFound)


def test_a_bounded_number_runs_and_is_remembered(bench: Bench) -> None:
    bench.append("m", due=[1000])
    for _ in range(jobs.RUNNING_JOBS):
        bench.start_job("cancel", dry_run=True)
    with pytest.raises(Conflict):
        bench.start_job("cancel")
    bench.trim()
    for _ in range(jobs.FINISHED_JOBS):
        bench.job("cancel", dry_run=True)
    assert len(bench.rows(b"j")) <= jobs.FINISHED_JOBS + 1


@pytest.mark.parametrize("kind", ["cancel", "move"])
def test_job_affects_only_selected_messages(bench: Bench, kind: str) -> None:
    bench.open()
    bench.put("early", key="ab", due=999)
    bench.put("a", key="ab", due=1000)
    bench.put("other", key="b", due=1500)
    bench.put("none", due=1600)
    bench.put("b", key="abc", due=1999)
    bench.put("late", key="ab", due=2000)
    arguments: dict[str, Any] = {"from_ms": T + 1000, "until_ms": T + 2000, "key_prefix": b"ab"}
    if kind == "move":
        arguments["to_ms"] = T + 9000
    assert bench.job(kind, dry_run=True, **arguments) == (2, 0, 0)
    assert bench.job(kind, **arguments) == (2, 2, 0)
    assert bench.values(bench.lease(at=8999)) == ["early", "other", "none", "late"]
    assert bench.values(bench.lease(at=9000)) == (["a", "b"] if kind == "move" else [])


@pytest.mark.parametrize("kind", ["cancel", "move"])
def test_job_affects_only_messages_with_the_unique_key_prefix(kind: str) -> None:
    bench = Bench()
    bench.open()
    for value, key, unique in (("a", None, "u-1"), ("b", "k", "u-2"), ("c", "u-3", None), ("d", "k", "v-4")):
        bench.put(value, key=key, unique=unique, due=1000)
    arguments: dict[str, Any] = {"unique_key_prefix": b"u-"} | ({"to_ms": T + 9000} if kind == "move" else {})
    assert bench.job(kind, key_prefix=b"k", dry_run=True, **arguments) == (1, 0, 0), "both hold"
    assert bench.job(kind, **arguments) == (2, 2, 0)
    bench.restart()
    assert bench.values(bench.lease(at=8999)) == ["c", "d"]


def test_leased_messages_of_a_job_are_counted_as_too_late(bench: Bench) -> None:
    bench.open()
    bench.append("a", "b", "c")
    bench.lease(2)
    assert bench.job("cancel") == (1, 1, 2)
    assert bench.lease(at=1) == []


@pytest.mark.parametrize("shift", [-100, 0, 40, 100_000])
@pytest.mark.parametrize("restart", [True, False])
def test_move_job_skips_messages_that_it_moved(shift: int, restart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
    bench = Bench()
    bench.open()
    due = [1000 + 10 * n for n in range(9)]
    made = bench.send(*[str(n) for n in range(9)], due=due)
    job_id = bench.start_job("move", shift_ms=shift)
    while _shown(bench, job_id)["state"] == "running":
        bench.upkeep()
        if restart:
            bench.restart()
    assert (_shown(bench, job_id)["matched"], _shown(bench, job_id)["done"]) == (9, 9)
    for n, at in enumerate(due):
        found = bench.machine.log.find(made.offsets[16 * n : 16 * n + 16], bench.view)
        assert found is not None and (offsets.deliver_ms(found.offset), found.moves) == (T + at + shift, 1)
    assert bench.values(bench.lease(at=300_000)) == [str(n) for n in range(9)]


def test_move_job_skips_messages_moved_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "STEP_MESSAGES", 1)
    first, second = bench.put("a", due=1000), bench.put("b", due=2000)
    bench.move(first, 3000)
    job_id = bench.start_job("move", to_ms=T + 9000)
    bench.move(second, 4000)
    bench.trim()
    assert _shown(bench, job_id)["done"] == 1
    places = [bench.machine.log.find(name, bench.view) for name in (first, second)]
    assert [place and offsets.deliver_ms(place.offset) - T for place in places] == [9000, 4000]


def test_a_move_may_change_the_priority_and_leave_the_time() -> None:
    bench = RankedBench()
    bench.open()
    bench.add("a", "b", "c", priority=[1, 2, 3], due=[0, 0, 5000])
    assert bench.take(1) == ["a"]
    bench.add("d", priority=1)
    assert bench.job("move", priority=-7, until_ms=T + 1000) == (2, 2, 0)
    bench.add("e", priority=-6)
    assert bench.job("move", priority=0, to_ms=T + 2000, from_ms=T + 2000) == (1, 1, 0)
    assert bench.take(5, at=1999) == ["b", "d", "e"]
    assert bench.take(5, at=2000) == ["c"]


class TestRedrive:
    @staticmethod
    def _dead(count: int, **settings: Any) -> Bench:
        bench = Bench(max_attempts=1, **settings)
        bench.open()
        bench.append(*[str(n) for n in range(count)])
        bench.nack(bench.one(limit=count, at=0).token, at=0)
        return bench

    def test_redrive_keeps_its_rate(self) -> None:
        bench = self._dead(10)
        job_id = bench.start_job("redrive", rate=2)
        done = []
        for at in range(0, 6001, 500):
            bench.trim(at=at)
            bench.restart()
            done.append(_shown(bench, job_id)["done"])
        assert done == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10]
        assert _shown(bench, job_id)["state"] == "done"
        assert bench.values(bench.lease(at=6001)) == [str(n) for n in range(10)]

    def test_a_rate_is_caught_up_with(self) -> None:
        bench = self._dead(10)
        job_id = bench.start_job("redrive", rate=2)
        bench.trim(at=3000)
        assert _shown(bench, job_id)["done"] == 7

    def test_message_that_dies_again_is_not_redriven_again(self) -> None:
        bench = self._dead(3)
        job_id = bench.start_job("redrive", at=1, rate=1)
        for at in range(1, 8000, 500):
            bench.trim(at=at)
            for lease in bench.lease(at=at):
                bench.nack(lease.token, at=at)
        assert _shown(bench, job_id)["done"] == 3
        assert len(bench.dead()) == 3

    def test_redrive_pauses_while_too_many_messages_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redrive, "WAITING_RANGES", 1)
        monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
        bench = self._dead(5)
        job_id = bench.start_job("redrive", at=1)
        bench.trim(at=1)
        assert _shown(bench, job_id)["done"] == 2
        assert bench.values(bench.lease(at=2)) == ["0", "1"]
        bench.trim(at=2 + redrive.PAUSE_MS)
        assert _shown(bench, job_id)["done"] == 4

    def test_redrive_ends_when_the_group_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
        bench = self._dead(5)
        job_id = bench.start_job("redrive")
        bench.upkeep()
        bench.apply(1, c.DropGroup("g"))
        bench.trim(at=1)
        assert _shown(bench, job_id)["state"] == "done"
        assert bench.rows(b"d") == bench.rows(b"k") == bench.rows(b"w") == []
        bench.restart()
        bench.open(at=2)
        assert bench.dead() == []

    def test_job_is_refused_during_a_seek(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Dead letters above the new position come from the log again and must come only once."""
        monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
        bench = self._dead(5, retention="1h")
        bench.start_job("redrive")
        bench.upkeep()
        bench.apply(1, c.Seek("g", "earliest"))
        bench.trim(at=1)
        bench.trim(at=10_000)
        values = bench.values(bench.lease(at=10_000))
        assert sorted(values) == [str(n) for n in range(5)]
        assert bench.dead() == []

    @pytest.mark.parametrize("restart", [True, False])
    def test_redrive_keeps_the_order_of_keys(self, restart: bool) -> None:
        """Redriven messages are leased together with others of their key. Blocked messages wait for all of them."""
        bench = Bench(ordering="key", max_attempts=1)
        bench.open()
        for n in range(4):
            bench.put(f"{n}", key="k")
        for n in range(2):
            bench.nack(bench.one(at=n).token, at=n)
        lease = bench.one(at=3)
        assert bench.values([lease]) == ["2"]
        bench.job("redrive", at=4)
        if restart:
            bench.restart()
        again = bench.one(at=4)
        assert bench.values([again]) == ["0", "1"]
        bench.ack(lease.token, at=5)
        if restart:
            bench.restart()
        assert bench.lease(at=5) == []
        bench.ack(again.token, [[again.ranges[0].base, 1]], at=5)
        assert bench.lease(at=5) == []
        bench.ack(again.token, at=6)
        assert bench.values(bench.lease(at=6)) == ["3"]

    @pytest.mark.parametrize("restart", [True, False])
    def test_redriven_message_precedes_blocked_ones(self, restart: bool) -> None:
        bench = Bench(ordering="key", max_attempts=1)
        bench.open()
        for n in range(4):
            bench.put(f"{n}", key="k")
        bench.nack(bench.one(limit=1, at=0).token, at=0)
        second = bench.one(limit=1, at=1)
        assert bench.lease(at=1) == []
        bench.ack(second.token, at=2)
        bench.job("redrive", at=2)
        if restart:
            bench.restart()
        redriven = bench.one(at=3)
        assert bench.values([redriven]) == ["0"]
        bench.ack(redriven.token, at=4)
        third = bench.one(at=4)
        assert bench.values([third]) == ["2"]
        assert bench.lease(at=4) == [], "the last message waits for the third"


def test_jobs_of_one_entry_run_in_the_same_order_after_a_restart() -> None:
    """The order must not depend on the memory of a replica."""
    benches = [Bench(), Bench()]
    for bench in benches:
        bench.append(*["m"] * 2500, due=[1000] * 2500)
        first, second = b"\x02" * 16, b"\x01" * 16
        bench.apply(
            0, c.StartJob(first, "cancel", EVERYTHING), c.StartJob(second, "move", EVERYTHING | {"to_ms": 5000})
        )
    benches[1].restart()
    for _ in range(12):
        for bench in benches:
            bench.upkeep()
        assert benches[0].rows(b"j") == benches[1].rows(b"j")
    assert benches[0].everything() == benches[1].everything()


@pytest.mark.parametrize("priority", [5, [5, 6] * 250])
def test_ready_message_is_found_in_its_queue_without_a_scan(priority: int | list[int]) -> None:
    bench = RankedBench()
    bench.open()
    bench.add(*["x"] * 500, priority=priority)
    assert bench.take(1) == ["x"]
    scans = bench.stores.scans
    assert bench.job("move", priority=1)[:2] == (499, 499)
    assert bench.stores.scans - scans < 50
    assert bench.take(500) == ["x"] * 499
