"""Tests of dead letters by their ids and by their reasons, and of the history of earlier lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Unavailable, UnknownGroup
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.jobs import jobs, redrive
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.records.leases import HISTORY_ATTEMPTS, HISTORY_ERROR_CHARS
from sandq.partition.records.lives import EARLIER_LIVES
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.ranked_bench import RankedBench

KINDS: list[tuple[Callable[[str, list[bytes]], c.Command], str]] = [
    (c.RedriveDead, "redriven"),
    (c.PurgeDead, "purged"),
]
both = pytest.mark.parametrize(("command", "word"), KINDS)
restarted = pytest.mark.parametrize("restart", [False, True])


def dead_bench(*values: str, **settings: Any) -> tuple[Bench, list[bytes]]:
    """Return a bench whose messages died at their first attempt at time 1, and their ids."""
    bench = Bench(**({"max_attempts": 1} | settings))
    bench.open()
    ids = [bench.put(value, key=f"k{value}") for value in values]
    for lease in bench.lease():
        bench.nack(lease.token, at=1, error="boom")
    return bench, ids


def why(bench: Bench, message_id: bytes, group: int = 0) -> dict[str, Any]:
    described = PartitionQueries(bench.machine, bench.view).why(by_id(message_id))
    assert described is not None
    shown: dict[str, Any] = described["groups"][group]
    return shown


def listed(bench: Bench, **asked: Any) -> list[str]:
    """Values of a page of dead letters."""
    page, _ = PartitionQueries(bench.machine, bench.view).dead_page(
        "g", asked.pop("reason", None), 100, None, True, **asked
    )
    return [row["value"].decode() for row in page]


def die(bench: Bench, at: int, error: str) -> None:
    """Lease the only message and let it die at its first attempt."""
    assert bench.nack(bench.one(at=at).token, at=at + 1, error=error) is None


class TestById:
    @both
    @restarted
    def test_named_dead_letters_are_redriven_or_purged(self, command: Any, word: str, restart: bool) -> None:
        bench, ids = dead_bench("a", "b", "c")
        unknown = offsets.pack(T, 99, 0, 0)
        if restart:
            bench.restart()
        outcomes = bench.apply(2, command("g", [ids[2], unknown, ids[0]]))[0]
        assert outcomes == [(word, ids[2]), ("not_found", None), (word, ids[0])]
        assert [m.id for m in bench.dead()] == [ids[1]]
        assert bench.values(bench.lease(at=2)) == (["a", "c"] if word == "redriven" else [])

    def test_repeated_redrive_reports_the_state(self) -> None:
        bench, (one,) = dead_bench("a")
        again = c.RedriveDead("g", [one])
        assert bench.apply(2, again) == [[("redriven", one)]]
        assert bench.apply(2, again) == [[("not_dead", "ready")]]
        lease = bench.one(at=3)
        assert bench.apply(3, again) == [[("not_dead", "leased")]]
        bench.ack(lease.token, at=4)
        assert bench.apply(5, again, c.PurgeDead("g", [one])) == [[("not_found", None)], [("not_found", None)]]

    def test_message_waiting_for_an_attempt_is_not_dead(self) -> None:
        bench = Bench()
        bench.open()
        one = bench.put("a")
        bench.nack(bench.one().token, at=1, delay=1000)
        assert bench.apply(2, c.PurgeDead("g", [one])) == [[("not_dead", "waiting")]]
        assert bench.state_of(one) == "waiting"

    @both
    def test_letter_named_twice_has_one_outcome(self, command: Any, word: str) -> None:
        bench, (one,) = dead_bench("a")
        assert bench.apply(2, command("g", [one, one])) == [[(word, one)] * 2]
        assert bench.dead() == []
        assert bench.values(bench.lease(at=2)) == (["a"] if word == "redriven" else [])

    @both
    def test_a_moved_one_is_known_by_its_id(self, command: Any, word: str) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        one = bench.put("a", due=60_000)
        verdict, now = bench.move(one, 1000)
        assert verdict == "moved"
        bench.nack(bench.one(at=1000).token, at=1001)
        assert bench.apply(1002, command("g", [now])) == [[("not_found", None)]], "the new offset is no id"
        assert bench.apply(1003, command("g", [one])) == [[(word, one)]]

    @both
    def test_only_letters_of_the_named_group_are_affected(self, command: Any, word: str) -> None:
        bench, (one,) = dead_bench("a")
        bench.open("h", at=2)
        assert bench.apply(3, command("h", [one])) == [[("not_found", None)]]
        (refused,) = bench.apply(3, command("nobody", [one]))
        assert isinstance(refused, UnknownGroup)
        assert len(bench.dead()) == 1

    @both
    def test_large_ones_are_taken_a_part_at_a_time(
        self, command: Any, word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redrive, "EACH_BYTES", 4000)
        bench, ids = dead_bench(*["x" * 1000] * 5)
        done = []
        while len(done) < 5:
            left = [one for one in ids if one not in done]
            outcomes = bench.apply(2, command("g", left))[0]
            done += [one for one, (verdict, _) in zip(left, outcomes, strict=True) if verdict == word]
            assert [verdict for verdict, _ in outcomes] == ([word] * 2 + ["not_yet"] * 3)[: len(left)]
        assert bench.dead() == []

    def test_job_is_refused_during_a_seek(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "STEP_MESSAGES", 1)
        bench, ids = dead_bench("a", "b", retention="1h")
        (_, refused) = bench.apply(2, c.Seek("g", "earliest"), c.RedriveDead("g", ids))
        assert isinstance(refused, Unavailable) and "seek" in refused.message
        bench.trim(at=3)
        assert bench.values(bench.lease(at=3)) == ["a", "b"]

    def test_redrive_is_refused_while_too_many_messages_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redrive, "WAITING_RANGES", 1)
        bench, ids = dead_bench("a", "b")
        bench.apply(2, c.RedriveDead("g", ids[:1]))
        (refused,) = bench.apply(2, c.RedriveDead("g", ids[1:]))
        assert isinstance(refused, Unavailable) and refused.retriable
        assert bench.apply(2, c.PurgeDead("g", ids[1:])) == [[("purged", ids[1])]], "a purge needs no waiting"

    def test_redriven_message_keeps_the_order_of_its_key(self) -> None:
        bench = Bench(ordering="key", max_attempts=1)
        bench.open()
        first, _ = bench.put("0", key="k"), bench.put("1", key="k")
        bench.nack(bench.one().token, at=1)
        assert bench.apply(2, c.RedriveDead("g", [first])) == [[("redriven", first)]]
        bench.restart()
        again = bench.one(at=2)
        assert bench.values([again]) == ["0"]
        assert bench.lease(at=2) == [], "the next message of the key waits"
        bench.ack(again.token, at=3)
        assert bench.values(bench.lease(at=3)) == ["1"]

    @pytest.mark.parametrize("kind", ["priority", "fair"])
    @restarted
    def test_ranked_ones_stand_in_their_queues_again(self, kind: str, restart: bool) -> None:
        bench = RankedBench(kind, max_attempts=1)
        bench.open()
        named = {"tenant": "acme"} if kind == "fair" else {}
        low, high = (bench.add("x", priority=priority, unique=[f"u{priority}"], **named)[0] for priority in (5, 1))
        for lease in bench.lease():
            bench.nack(lease.token, at=1)
        if restart:
            bench.restart()
        assert bench.apply(2, c.RedriveDead("g", [low, high])) == [[("redriven", low), ("redriven", high)]]
        if restart:
            bench.restart()
        lease = bench.one(limit=1, at=3)
        assert [m.id for m in bench.messages(lease)] == [high]
        assert [m.fields[Column.UNIQUE_KEY] for m in bench.messages(lease)] == [b"u1"]
        assert bench.values(bench.lease(at=3)) == ["x"]


class TestFilters:
    def _bench(self) -> tuple[Bench, list[bytes]]:
        """Four dead messages with the reasons boom, Bang, a lease end and a ttl. They died at 1, 2, 3 and 4."""
        bench = Bench(max_attempts=1)
        bench.open()
        ids = [bench.put(value, key=key) for value, key in zip("abcd", ("eu/1", "eu/2", "us/1", None), strict=True)]
        by_value = {bench.values([lease])[0]: lease for lease in (bench.one(limit=1) for _ in ids)}
        for at, (value, error) in enumerate([("a", "went boom"), ("b", "Bang: boo"), ("c", None), ("d", "")], 1):
            bench.nack(by_value[value].token, at=at, error=error)
        return bench, ids

    @pytest.mark.parametrize(
        ("which", "values"),
        [
            ({}, "abcd"),
            ({"error": "boo"}, "ab"),
            ({"error": "boom"}, "a"),
            ({"error": "bang"}, ""),
            ({"key_prefix": b"eu/"}, "ab"),
            ({"key_prefix": b"eu/2"}, "b"),
            ({"key_prefix": b""}, "abcd"),
            ({"error": "boo", "key_prefix": b"eu/2"}, "b"),
            ({"error": "boo", "key_prefix": b"us/"}, ""),
            ({"reason": "expired", "error": "boo"}, ""),
            ({"reason": "nacked", "error": "boo", "from_ms": T + 2}, "b"),
            ({"from_ms": T + 2, "until_ms": T + 4}, "bc"),
        ],
    )
    def test_list_redrive_and_purge_mean_the_same(self, which: dict[str, Any], values: str) -> None:
        assert listed(self._bench()[0], **which) == list(values)
        bench, _ = self._bench()
        assert bench.job("redrive", at=5, dry_run=True, **which) == (len(values), 0, 0)
        assert bench.job("redrive", at=5, **which) == (len(values), len(values), 0)
        assert bench.values(bench.lease(at=5)) == list(values)
        bench, ids = self._bench()
        assert bench.job("purge_dead", at=5, **which) == (len(values), len(values), 0)
        assert [m.id for m in bench.dead()] == [
            one for one, value in zip(ids, "abcd", strict=True) if value not in values
        ]

    def test_stopped_job_affected_only_the_processed_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "STEP_MESSAGES", 2)
        bench, _ = self._bench()
        job_id = bench.start_job("redrive", at=5, error="boo", key_prefix=b"eu/2")
        bench.upkeep(at=5)
        bench.restart()
        assert bench.machine.jobs.find(job_id).arguments["error"] == "boo"
        shown = bench.apply(6, c.StopJob(job_id))[0]
        assert (shown["state"], shown["done"]) == ("stopped", 1)
        bench.trim(at=7)
        assert bench.values(bench.lease(at=8)) == ["b"]
        assert len(bench.dead()) == 3


class TestLives:
    @restarted
    @pytest.mark.parametrize("by", ["id", "job"])
    def test_earlier_attempts_are_shown_in_each_state_after_a_redrive(self, restart: bool, by: str) -> None:
        bench = Bench(max_attempts=2, backoff={"kind": "fixed", "first": "10ms"})
        bench.open()
        one = bench.put("a")

        def restart_if_asked() -> None:
            if restart:
                bench.restart()

        def described() -> tuple[str, list[tuple[int, str | None]], list[list[Any]]]:
            restart_if_asked()
            group = why(bench, one)
            return group["state"], [(row[0], row[5]) for row in group["history"]], group.get("lives", [])

        bench.nack(bench.one(at=0).token, at=1, error="e1")
        bench.nack(bench.one(at=20).token, at=21, error="e2")
        assert described() == ("dead", [(1, "e1"), (2, "e2")], [])
        if by == "id":
            bench.apply(30, c.RedriveDead("g", [one]))
        else:
            bench.job("redrive", at=30)
        life = [[1, 2, 2, "nacked", "e2", T + 21, T + 30]]
        assert described() == ("ready", [(1, "e1"), (2, "e2")], life)
        lease = bench.one(at=40)
        assert lease.attempt == 1, "attempts count anew"
        assert described() == ("leased", [(1, "e1"), (2, "e2")], life)
        bench.nack(lease.token, at=41, error="e3")
        assert described() == ("waiting", [(1, "e1"), (2, "e2"), (1, "e3")], life)
        lease = bench.one(at=60)
        assert (lease.attempt, described()) == (2, ("leased", [(1, "e1"), (2, "e2"), (1, "e3")], life))
        bench.nack(lease.token, at=61, error="e4")
        assert described() == ("dead", [(1, "e1"), (2, "e2"), (1, "e3"), (2, "e4")], life)
        page, _ = PartitionQueries(bench.machine, bench.view).dead_page("g", None, 10, None, True)
        assert [(row[0], row[5]) for row in page[0]["history"]] == [(1, "e1"), (2, "e2"), (1, "e3"), (2, "e4")]
        assert (page[0]["attempts"], page[0]["error"], page[0]["lives"]) == (2, "e4", life)

    def test_earlier_lives_are_limited_and_numbered(self) -> None:
        bench, (one,) = dead_bench("a")
        for number in range(EARLIER_LIVES + 3):
            bench.apply(10 + 10 * number, c.RedriveDead("g", [one]))
            die(bench, 12 + 10 * number, f"e{number}")
        (dead,) = bench.dead()
        assert [life.number for life in dead.lives] == list(range(4, 4 + EARLIER_LIVES))
        assert [life.error for life in dead.lives] == [f"e{number}" for number in range(2, 2 + EARLIER_LIVES)]
        assert dead.error == f"e{EARLIER_LIVES + 2}"

    def test_each_life_keeps_a_bounded_history(self) -> None:
        bench = Bench(max_attempts=HISTORY_ATTEMPTS + 2, backoff={"kind": "none"})
        bench.open()
        one = bench.put("a")
        for at in range(HISTORY_ATTEMPTS + 2):
            bench.nack(bench.one(at=at).token, at=at, error="x" * 1000)
        bench.apply(100, c.RedriveDead("g", [one]))
        bench.nack(bench.one(at=100).token, at=101)
        group = why(bench, one)
        assert [row[0] for row in group["history"]] == [*range(3, HISTORY_ATTEMPTS + 3), 1]
        (life,) = group["lives"]
        assert life[:3] == [1, HISTORY_ATTEMPTS, HISTORY_ATTEMPTS + 2] and len(life[4]) == HISTORY_ERROR_CHARS

    def test_expired_message_has_a_life_without_attempts(self) -> None:
        bench = Bench(max_attempts=1)
        bench.open()
        one = bench.put("a", ttl=100)
        bench.expire(at=100)
        bench.apply(200, c.RedriveDead("g", [one]))
        assert why(bench, one)["lives"] == [[1, 0, 0, "expired", None, T + 100, T + 200]]
        die(bench, 300, "boom")
        (dead,) = bench.dead()
        assert (dead.reason, [life.reason for life in dead.lives]) == ("nacked", ["expired"])

    def test_each_of_those_that_wait_together_has_its_own(self) -> None:
        """The messages share one entry and one lease. Messages that are nacked together die in separate rows."""
        bench = Bench(max_attempts=1)
        bench.open()
        ids = [bench.put(value) for value in "ab"]
        for at, error in enumerate(("ea", "eb"), 1):
            bench.nack(bench.one(limit=1, at=at).token, at=at, error=error)
        bench.job("redrive", at=5)
        assert len(bench.rows(rows.WAITING)) == 1
        die(bench, 6, "again")
        assert {m.id: [life.error for life in m.lives] for m in bench.dead()} == {ids[0]: ["ea"], ids[1]: ["eb"]}

    def test_headers_and_priority_that_a_nack_changes_leave_it(self) -> None:
        bench = RankedBench(max_attempts=2)
        bench.open()
        (one,) = bench.add("a", priority=5)
        for at in (0, 2000):
            bench.nack(bench.one(at=at).token, at=at + 1, error="boom")
        bench.apply(3000, c.RedriveDead("g", [one]))
        token = bench.one(at=3001).token
        bench.apply(3002, c.Nack([(token, None, 0, "e", True, {Column.PRIORITY: 1, Column.HEADERS: b"\x81\xa1a\x01"})]))
        bench.restart()
        assert [row[5] for row in why(bench, one)["history"]] == ["boom", "boom", "e"]
        assert why(bench, one)["lives"][0][0] == 1

    def test_seek_keeps_lives_of_trimmed_messages(self) -> None:
        bench, (one,) = dead_bench("a")
        bench.trim(at=2)
        assert bench.machine.log.find(one, bench.view) is None
        bench.seek("earliest", at=3)
        die(bench, 4, "again")
        (dead,) = bench.dead()
        assert [life.error for life in dead.lives] == ["boom"]

    def test_acked_redriven_message_leaves_no_rows(self) -> None:
        bench, (one,) = dead_bench("a")
        bench.apply(2, c.RedriveDead("g", [one]))
        bench.ack(bench.one(at=3).token, at=4)
        assert bench.rows(rows.KEPT) == bench.rows(rows.DEAD) == []

    def test_a_clock_that_is_set_back_leaves_them(self) -> None:
        bench, (one,) = dead_bench("a")
        bench.apply(2, c.RedriveDead("g", [one]))
        die(bench, 3, "again")
        bench.put("far", at=10_000_000)
        bench.apply(100, c.ClockReset(T + 100))
        bench.trim(at=200)
        (dead,) = bench.dead()
        assert [life.error for life in dead.lives] == ["boom"]
        assert bench.apply(300, c.RedriveDead("g", [one])) == [[("redriven", one)]]
