"""Tests of idempotent producers: every rule of `partition.producers`, also with a reload of the partition in
between."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.errors import AlreadyStored, Conflict, InvalidRequest, OutOfSequence, ProducerFenced, SandqError
from sandq.model.limits import FIXED
from sandq.model.sequence import MAX_CHAIN, RESENT, sequence_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.appends import Stored
from sandq.partition.producers import answers, producers
from tests.support.partition.bench import Bench, T, batch_of

P = 77
WEEK_MS = FIXED.producer_ttl_ms
RETRY_MS = FIXED.producer_retry_ms


def send(bench: Bench, number: int, *values: str, at: int = 0, epoch: int = 1, producer: int = P, **more: Any) -> Any:
    """Send a batch and return the answer. By default its only message has the name of the batch."""
    sequence = sequence_of(number, more.pop("chain", 0)) | (RESENT if more.pop("resent", False) else 0)
    on_conflict, split = more.pop("on_conflict", c.REJECT), more.pop("split", False)
    batch = batch_of(values or [f"{producer}.{epoch}.{number}"], **more)
    return bench.apply(at, c.Append(batch, producer, epoch, sequence, on_conflict, split))[0]


def log(bench: Bench) -> list[str]:
    """Return the values in the log, in order."""
    found = [rows.log_entry(key, value) for key, value in bench.rows(rows.LOG)]
    messages = bench.read([rows.Range(entry.first, entry.length) for entry in found])
    return [m.fields[1].decode() for m in messages]


def refused(result: object, error: type[SandqError], words: str, retriable: bool = False) -> SandqError:
    assert type(result) is error, result
    assert words in result.message
    assert result.retriable == retriable
    return result


@pytest.fixture(params=[False, True], ids=["in memory", "from rows"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A partition. `from rows`: it is reloaded before every entry."""
    bench = Bench()
    bench.restarts = request.param
    return bench


# -- repeated batches -------------------------------------------------------------------------------------------------


def test_a_batch_sent_again_is_stored_once_and_answered_as_the_first_time(bench: Bench) -> None:
    first = send(bench, 1, "a", "b")
    before = bench.everything()
    assert send(bench, 1, "a", "b", at=5, resent=True) == first
    assert send(bench, 1, "a", "b", at=5) == first, "the flag alone decides nothing"
    assert log(bench) == ["a", "b"]
    assert bench.status().messages == 2
    changed = [row for row in bench.everything() if row not in before]
    assert [key for key, _ in changed] == [rows.STATE_KEY], "a repetition changes only the row of the state"
    assert send(bench, 2, at=5)[0] > first[0]


def test_within_one_entry(bench: Bench) -> None:
    one, two = batch_of(["a", "b"]), batch_of(["c"])
    appends = [c.Append(one, P, 1, 1), c.Append(one, P, 1, 1), c.Append(two, P, 1, 2), c.Append(one, P, 1, 1)]
    results = bench.apply(0, *appends)
    assert results[0] == results[1] == results[3]
    assert offsets.distance(results[0][0], results[2][0]) == 2, "a repetition uses no place"
    assert log(bench) == ["a", "b", "c"]


def test_a_batch_of_messages_with_times_of_their_own(bench: Bench) -> None:
    for relative in (False, True):
        number = 1 + relative
        first = send(bench, number, "a", "b", "c", at=10, due=[5, 900, 60_000], relative=relative)
        assert isinstance(first, Stored)
        bench.apply(700, c.Clock())
        again = send(bench, number, "a", "b", "c", at=800, due=[5, 900, 60_000], relative=relative)
        assert again == first
    assert bench.status().messages == 6


def test_a_batch_with_a_time_that_was_due_when_it_came_again(bench: Bench) -> None:
    """The batch was stored message by message, because its time was ahead. A later repetition gets the same answer."""
    first = send(bench, 1, "a", "b", due=[500, 500])
    assert isinstance(first, Stored)
    assert send(bench, 1, "a", "b", at=5000, due=[500, 500]) == first


def test_refused_messages_are_part_of_the_answer(bench: Bench) -> None:
    bench.open()
    send(bench, 1, "a", due=[500], unique=["u"], split=True)
    named: dict[str, Any] = {"due": [600, 600, 600], "unique": ["u", None, "v"], "split": True}
    first = send(bench, 2, "b", "c", "d", at=1, **named)
    assert first.refused == [(0, "delayed")]
    assert bench.values(bench.lease(at=500)) == ["a"]
    assert send(bench, 2, "b", "c", "d", at=700, **named) == first, (
        "the answer is unchanged although the message is delivered"
    )
    ignored = send(bench, 3, "e", "f", at=701, unique=["v", "w"], split=True, on_conflict=c.IGNORE)
    assert ignored.refused == []
    bench.cancel((c.TARGET_KEY, b"v"), at=702)
    assert send(bench, 3, "e", "f", at=703, unique=["v", "w"], split=True, on_conflict=c.IGNORE) == ignored
    assert bench.status().messages == 3, "the leased message a, and c and f"


def test_an_answer_with_too_many_ids_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_IDS", 2)
    keys = ["u", "v", "w"]
    named: dict[str, Any] = {"due": [500] * 3, "unique": keys, "split": True}
    send(bench, 1, *keys, **named)
    three = send(bench, 2, *keys, **named)
    assert len(three.refused) == 3
    refused(send(bench, 2, *keys, **named), AlreadyStored, "where its messages are is not known")
    two = send(bench, 3, "u", "v", "x", due=[500] * 3, unique=["u", "v", "x"], split=True)
    assert send(bench, 3, "u", "v", "x", due=[500] * 3, unique=["u", "v", "x"], split=True) == two
    assert bench.status().messages == 4


def test_five_answers_are_kept(bench: Bench) -> None:
    first = {number: send(bench, number) for number in range(1, 8)}
    for number in (7, 5, 3):
        assert send(bench, number) == first[number]
    for number in (1, 2):
        refused(send(bench, number), AlreadyStored, "was stored before")
    assert len(log(bench)) == 7


def test_rows_of_answers_go_with_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 2)
    named: dict[str, Any] = {"due": [500], "unique": ["u"], "split": True}
    for number in range(1, 9):
        send(bench, number, "u", **named)
    kept = [int.from_bytes(key[9:], "big") for key, _ in bench.rows(rows.ANSWER)]
    assert kept == [4, 5, 6, 7, 8]
    send(bench, 1, epoch=2)
    assert bench.rows(rows.ANSWER) == []
    send(bench, 2, "u", epoch=2, **named)
    assert len(bench.rows(rows.ANSWER)) == 1
    for producer in (5, 6):
        send(bench, 1, producer=producer)
    assert bench.rows(rows.ANSWER) == []


def test_different_batch_with_the_same_number_is_refused(bench: Bench) -> None:
    send(bench, 1, "a")
    refused(send(bench, 1, "b"), Conflict, "stored another batch as number 1")
    assert log(bench) == ["a"]


def test_a_batch_with_others_before_it_is_another_batch(bench: Bench) -> None:
    first = send(bench, 1, "a", chain=7)
    for resent in (False, True):
        assert send(bench, 1, "a", chain=7, resent=resent) == first
        for chain in (0, 6, 8, MAX_CHAIN):
            refused(send(bench, 1, "a", chain=chain, resent=resent), Conflict, "or others before it")
    assert not isinstance(send(bench, 2, "b", chain=MAX_CHAIN), SandqError), "only the number is checked"
    assert log(bench) == ["a", "b"]


# -- order of batches -------------------------------------------------------------------------------------------------


def test_gap_stores_nothing_until_the_missing_batch_arrives(bench: Bench) -> None:
    send(bench, 1)
    for number in (3, 4):
        error = refused(send(bench, number), OutOfSequence, "2 is next", retriable=True)
        assert error.details == {"expected": 2}
    for number in (2, 3, 4):
        assert not isinstance(send(bench, number), SandqError)
    assert log(bench) == ["77.1.1", "77.1.2", "77.1.3", "77.1.4"]


def test_producers_do_not_know_of_each_other(bench: Bench) -> None:
    send(bench, 1)
    send(bench, 1, producer=5)
    send(bench, 2)
    refused(send(bench, 3, producer=5), OutOfSequence, "2 is next", retriable=True)
    assert log(bench) == ["77.1.1", "5.1.1", "77.1.2"]


def test_a_new_epoch_begins_with_one_and_fences_the_old_ones(bench: Bench) -> None:
    send(bench, 1)
    refused(send(bench, 2, epoch=3), OutOfSequence, "1 is next", retriable=True)
    first = send(bench, 1, epoch=3)
    for number in (1, 2):
        refused(send(bench, number), ProducerFenced, "has begun epoch 3")
        refused(send(bench, number, epoch=2), ProducerFenced, "has begun epoch 3")
    assert send(bench, 1, epoch=3, resent=True) == first
    send(bench, 2, epoch=3)
    assert log(bench) == ["77.1.1", "77.3.1", "77.3.2"]


def test_a_batch_that_is_refused_leaves_its_number_free(bench: Bench) -> None:
    """The state machine refuses a whole batch only for wrong numbers."""
    for epoch, number in ((0, 1), (1, 0), (0, 0)):
        refused(send(bench, number, epoch=epoch), InvalidRequest, "begin with 1")
        refused(send(bench, number, epoch=epoch, resent=True), InvalidRequest, "begin with 1")
    assert bench.rows(rows.PRODUCER) == []
    send(bench, 1)
    assert log(bench) == ["77.1.1"]


def test_without_a_producer_nothing_is_compared(bench: Bench) -> None:
    for _ in range(2):
        send(bench, 0, "a", producer=0, epoch=0)
    assert log(bench) == ["a", "a"]
    assert bench.rows(rows.PRODUCER) == []


# -- forgotten producers ----------------------------------------------------------------------------------------------


def test_an_unknown_producer_begins_with_one(bench: Bench) -> None:
    refused(send(bench, 2), OutOfSequence, "not known here", retriable=True)
    refused(send(bench, 2, resent=True), OutOfSequence, "not known here", retriable=True)
    assert not isinstance(send(bench, 1, epoch=4, resent=True), SandqError), "no producer was ever dropped here"
    assert log(bench) == ["77.4.1"]


def test_a_producer_is_forgotten_after_a_week(bench: Bench) -> None:
    send(bench, 1)
    send(bench, 1, producer=5, at=10)
    assert bench.status().upkeep_ms == T + WEEK_MS
    send(bench, 1, at=500)  # a repetition does not count as use
    bench.upkeep(at=WEEK_MS - 1)
    assert not isinstance(send(bench, 1, at=WEEK_MS - 1), SandqError), "still known"
    bench.trim(at=WEEK_MS)
    assert len(bench.rows(rows.PRODUCER)) == 1
    assert bench.status().upkeep_ms == T + WEEK_MS + 10
    refused(send(bench, 2, at=WEEK_MS), OutOfSequence, "not known here", retriable=True)
    bench.trim(at=WEEK_MS + 10)
    assert bench.rows(rows.PRODUCER) == []
    assert bench.status().upkeep_ms is None
    send(bench, 1, at=WEEK_MS + 10, epoch=2)
    assert log(bench) == ["77.1.1", "5.1.1", "77.2.1"]


def test_forgetting_is_done_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "FORGET_PRODUCERS", 3)
    for producer in range(1, 9):
        send(bench, 1, producer=producer)
    left = []
    for _ in range(4):
        assert bench.apply(WEEK_MS, c.Upkeep()) == [len(left) < 2]
        left.append(len(bench.rows(rows.PRODUCER)))
    assert left == [5, 2, 0, 0]


def test_least_recently_used_producer_is_removed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 3)
    # All batches have one timestamp, some in one entry. The order of the log decides.
    append = [c.Append(batch_of(["x"]), producer, 1, 1) for producer in (9, 3, 6)]
    bench.apply(0, *append)
    send(bench, 2, producer=9)
    send(bench, 1, producer=5)
    kept = {int.from_bytes(key[1:], "big") for key, _ in bench.rows(rows.PRODUCER) if key != rows.PRODUCER}
    assert kept == {9, 6, 5}
    send(bench, 2, producer=5)
    send(bench, 1, producer=4)
    kept = {int.from_bytes(key[1:], "big") for key, _ in bench.rows(rows.PRODUCER) if key != rows.PRODUCER}
    assert kept == {9, 5, 4}
    assert len(bench.machine.producers) == 3


def test_a_first_batch_sent_before_is_refused_while_it_may_be_of_one_that_was_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS", 1)
    send(bench, 1, at=0)
    send(bench, 1, producer=5, at=1000)
    refused(send(bench, 1, at=1000, resent=True), OutOfSequence, "whether it was stored", retriable=True)
    refused(send(bench, 1, at=RETRY_MS, resent=True), OutOfSequence, "whether it was stored", retriable=True)
    assert not isinstance(send(bench, 1, producer=6, at=RETRY_MS), SandqError), "a new producer is accepted at once"
    assert bench.view.get(rows.PRODUCER) == rows.pack(T + 1000)
    # All dropped producers were last used so long ago that none of them can still retry.
    assert not isinstance(send(bench, 1, producer=7, at=1001 + RETRY_MS, resent=True), SandqError)


def test_row_of_producer_is_small() -> None:
    bench = Bench()
    many = [f"m{at}" for at in range(2000)]
    for number in range(1, 8):
        send(bench, number, *many, due=list(range(1000, 3000)))
    ((_, row),) = bench.rows(rows.PRODUCER)
    assert len(row) < 200
