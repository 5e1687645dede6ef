"""Tests of conflicts of unique keys: a producer learns the outcome, and replaces only pending messages."""

from __future__ import annotations

import pytest

from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from sandq.partition.producers import answers
from tests.support.partition.bench import Bench, batch_of

WINDOW_MS = 60_000


@pytest.fixture
def bench() -> Bench:
    bench = Bench(dedup_window="1m")
    bench.open()
    return bench


def put_into(bench: Bench, state: str) -> bytes:
    """A bench that has a message with the unique key k in one state."""
    if state == "delayed":
        return bench.put("a", unique="k", due=10 * WINDOW_MS)
    if state == "dead":
        bench.apply(0, c.ConfigureGroup("g", {"max_attempts": 1}))
    first = bench.put("a", unique="k")
    if state == "ready":
        return first
    lease = bench.one()
    if state in ("waiting", "dead"):
        bench.nack(lease.token, delay=None if state == "dead" else 5 * WINDOW_MS)
    elif state == "acked":
        bench.ack(lease.token)
    return first


def send(bench: Bench, at: int, on_conflict: int) -> Stored:
    return bench.send("again", unique=["k"], at=at, on_conflict=on_conflict)


@pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "leased", "acked", "dead"])
def test_outcome_of_replace_by_state(bench: Bench, state: str) -> None:
    first = put_into(bench, state)
    made = send(bench, 1, c.REPLACE)
    if state in ("delayed", "ready", "waiting"):
        assert (made.refused, made.outcomes) == ([], [(0, "replaced", first)])
        assert bench.status().messages == 1
    elif state == "leased":
        assert (made.refused, made.outcomes) == ([(0, "leased")], [])
    else:
        assert (made.refused, made.outcomes) == ([], [(0, "stored", state)])
        assert made.offsets != first


@pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "leased", "acked", "dead"])
def test_outcome_of_replace_pending_by_state(bench: Bench, state: str) -> None:
    first = put_into(bench, state)
    made = send(bench, 1, c.REPLACE_PENDING)
    if state in ("delayed", "ready", "waiting"):
        assert (made.refused, made.outcomes) == ([], [(0, "replaced", first)])
        assert bench.values(bench.lease(at=20 * WINDOW_MS)) == ["again"]
    else:
        assert made == Stored(first, [(0, state)], []), "nothing is stored"
        bench.expire(at=60_000)
        assert "again" not in bench.values(bench.lease(at=20 * WINDOW_MS))


@pytest.mark.parametrize("state", ["delayed", "ready", "waiting", "leased", "acked", "dead"])
def test_outcome_of_ignore_by_state(bench: Bench, state: str) -> None:
    first = put_into(bench, state)
    assert send(bench, 1, c.IGNORE) == Stored(first, [], [(0, "ignored", state)])


@pytest.mark.parametrize("on_conflict", [c.REPLACE, c.IGNORE, c.REPLACE_PENDING])
def test_free_key_has_no_outcome(bench: Bench, on_conflict: int) -> None:
    assert send(bench, 0, on_conflict).outcomes == []
    bench.cancel((c.TARGET_KEY, b"k"))
    assert send(bench, 0, on_conflict).outcomes == [], "it was cancelled"
    bench.ack(bench.one(at=1).token, at=1)
    bench.trim(at=1 + WINDOW_MS)
    assert send(bench, 1 + WINDOW_MS, on_conflict).outcomes == [], "the window of the key is over"


def test_outcome_for_trimmed_message_within_the_window(bench: Bench) -> None:
    first = put_into(bench, "acked")
    bench.trim(at=WINDOW_MS // 2)
    assert send(bench, WINDOW_MS // 2, c.REPLACE_PENDING) == Stored(first, [(0, "delivered")], [])
    assert send(bench, WINDOW_MS // 2, c.REPLACE).outcomes == [(0, "stored", "delivered")]


def test_outcome_for_message_done_in_one_of_two_groups(bench: Bench) -> None:
    bench.open("slow")
    first = put_into(bench, "acked")
    for on_conflict in (c.REPLACE, c.REPLACE_PENDING):
        assert send(bench, 1, on_conflict) == Stored(first, [(0, "acked")], [])


def test_without_a_window_a_key_is_free_at_once() -> None:
    bench = Bench(dedup_window="0s")
    bench.open()
    put_into(bench, "acked")
    assert send(bench, 1, c.REPLACE_PENDING).refused == []


def test_rejections_say_nothing(bench: Bench) -> None:
    assert send(bench, 0, c.REJECT).outcomes is None


# -- repeated answers -------------------------------------------------------------------------------------------------


def numbered(number: int, on_conflict: int, *keys: str | None) -> c.Append:
    batch = batch_of([f"{number}"] * len(keys), unique=keys)
    return c.Append(batch, 77, 1, number, on_conflict, split=True)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_that_comes_again_is_answered_as_the_first_time(bench: Bench, restarted: bool) -> None:
    for key in "abcd":
        bench.put(key, unique=key)
    bench.ack(bench.one(limit=1).token)  # a
    bench.one(limit=1)  # b
    first = bench.apply(1, numbered(1, c.REPLACE, "a", "b", "c", None, "new", "new"))
    second = bench.apply(2, numbered(2, c.IGNORE, "b", "d", "e"))
    third = bench.apply(2, numbered(3, c.REPLACE_PENDING, "b", "d", "f"))
    assert [kind for _, kind, _ in first[0].outcomes] == ["stored", "replaced", "replaced"]
    assert (second[0].outcomes, third[0].refused) == (
        [(0, "ignored", "leased"), (1, "ignored", "ready")],
        [(0, "leased")],
    )
    if restarted:
        bench.restart()
    assert bench.apply(9000, numbered(1, c.REPLACE, "a", "b", "c", None, "new", "new")) == first
    assert bench.apply(9000, numbered(2, c.IGNORE, "b", "d", "e")) == second
    assert bench.apply(9000, numbered(3, c.REPLACE_PENDING, "b", "d", "f")) == third


def test_reply_without_outcomes_needs_no_row(bench: Bench) -> None:
    made = bench.apply(1, numbered(1, c.REPLACE, "a"))
    assert bench.rows(b"r") == []
    assert bench.apply(2, numbered(1, c.REPLACE, "a")) == made
    assert made[0].outcomes == []


def test_rows_go_with_their_answers(bench: Bench) -> None:
    for number in range(1, FIXED.producer_answers + 4):
        bench.apply(number, numbered(number, c.REPLACE, "a"))
    assert len(bench.rows(b"r")) == FIXED.producer_answers


def test_outcomes_beyond_the_kept_ones_are_not_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_IDS", 2)
    keys = ("a", "b", "c")
    bench.apply(1, numbered(1, c.REPLACE, *keys))
    made = bench.apply(2, numbered(2, c.REPLACE, *keys))[0]
    assert len(made.outcomes) == 3
    assert bench.apply(3, numbered(2, c.REPLACE, *keys)) == [made._replace(outcomes=None)]
