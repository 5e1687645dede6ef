"""Tests of quotas: an identity gets exactly its requests and bytes, and learns when to retry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.batch_format import stored_bytes_of
from sandq.model.errors import QuotaExceeded, TooLarge
from sandq.model.quotas import NO_QUOTA, Quota
from sandq.protocol.frames import Type
from sandq.protocol.requests import Produce
from sandq.server.delays import ahead_of_batch, check_delay, delay_of_request
from sandq.server.produce_coalescer import ProduceCoalescer
from sandq.server.quota_meters import QuotaMeters


class Hand:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def meters(hand: Hand) -> QuotaMeters:
    return QuotaMeters(hand)


def most(meters: QuotaMeters, quota: Quota, size: int = 0) -> int:
    """Return the number of requests that are admitted now."""
    for count in range(10_000):
        try:
            meters.take("token:a", quota, 1, size)
        except QuotaExceeded:
            return count
    return 10_000


def test_requests_keep_the_quota_over_time(meters: QuotaMeters, hand: Hand) -> None:
    quota, taken = Quota(requests_per_s=5), 0
    for _ in range(101):
        taken += most(meters, quota)
        hand.now_s += 0.1
    assert taken == 5 + 50


def test_caller_that_waits_the_given_time_is_admitted(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(requests_per_s=3)
    assert most(meters, quota) == 3
    with pytest.raises(QuotaExceeded) as refused:
        meters.take("token:a", quota, 1, 0)
    error = refused.value
    assert error.details["quota"] == "requests_per_s" and error.details["maximum"] == 3
    assert error.retriable
    wait_ms = error.details["retry_after_ms"]
    assert wait_ms == 334
    hand.now_s += wait_ms / 1000
    meters.take("token:a", quota, 1, 0)


def test_bytes_are_owed_exactly(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(bytes_per_s=1000)
    meters.take("token:a", quota, 1, 10_000)
    with pytest.raises(QuotaExceeded) as refused:
        meters.take("token:a", quota, 1, 1)
    assert refused.value.details["retry_after_ms"] == 9001
    hand.now_s += 9.0
    assert most(meters, quota, 1) == 0
    hand.now_s += 1.0
    assert most(meters, quota, 1) == 1000


def test_refused_request_is_not_counted(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(requests_per_s=100, bytes_per_s=10)
    meters.take("token:a", quota, 1, 20)
    for _ in range(1000):
        with pytest.raises(QuotaExceeded):
            meters.take("token:a", quota, 1, 1000)
    meter = meters.meters["token:a"]
    assert (meter.requests, meter.bytes, meter.refused) == (1, 20, 1000)


def test_settling_request_is_counted_and_never_refused(meters: QuotaMeters) -> None:
    quota = Quota(requests_per_s=2)
    for _ in range(5):
        meters.take("token:a", quota, 1, 0, is_free=True)
    assert most(meters, quota) == 0


def test_settlements_use_no_quota(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(requests_per_s=2, bytes_per_s=100)
    for _ in range(10_000):
        meters.take("token:a", quota, 1, 1000, is_free=True, carries=False)
    assert most(meters, quota) == 0
    hand.now_s += 1
    assert most(meters, quota) == 2
    meters.take("token:b", quota, 1, 1000)
    meters.take("token:b", quota, 1, 1000, is_free=True, carries=False)
    hand.now_s += 8.5
    with pytest.raises(QuotaExceeded):
        meters.take("token:b", quota, 1, 0)
    hand.now_s += 1
    meters.take("token:b", quota, 1, 0)


def test_messages_that_an_ack_sends_are_waited_for(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(bytes_per_s=100)
    for _ in range(2):
        meters.take("token:a", quota, 1, 500, is_free=True)
    hand.now_s += 8.5
    assert most(meters, quota) == 0
    hand.now_s += 1
    assert most(meters, quota) > 0


def test_requests_are_admitted_up_to_the_free_capacity(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(requests_per_s=5)
    assert meters.admits("token:a", quota, 5) and not meters.admits("token:a", quota, 6)
    meters.take("token:a", quota, 3, 0)
    assert meters.admits("token:a", quota, 2) and not meters.admits("token:a", quota, 3)
    hand.now_s += 1
    assert meters.admits("token:a", quota, 5)
    assert meters.admits("token:a", NO_QUOTA, 10_000)
    assert not meters.admits("token:b", Quota(requests_per_s=0), 1)


def test_larger_size_found_later_is_owed(meters: QuotaMeters, hand: Hand) -> None:
    quota = Quota(bytes_per_s=100)
    meters.take("token:a", quota, 1, 0)
    meters.owe("token:a", quota, 1000)
    hand.now_s += 8.5
    assert most(meters, quota) == 0
    hand.now_s += 1
    assert most(meters, quota) > 0
    assert meters.meters["token:a"].bytes == 1000


def test_a_quota_of_nothing_lets_nothing_through(meters: QuotaMeters) -> None:
    with pytest.raises(QuotaExceeded) as refused:
        meters.take("token:a", Quota(requests_per_s=0), 1, 0)
    assert "retry_after_ms" not in refused.value.details


def test_a_quota_that_was_raised_holds_at_once(meters: QuotaMeters) -> None:
    meters.take("token:a", Quota(bytes_per_s=1), 1, 1_000_000)
    assert most(meters, Quota(bytes_per_s=1000), 1) == 1000


def test_identities_do_not_share(meters: QuotaMeters) -> None:
    quota = Quota(requests_per_s=1)
    meters.take("token:a", quota, 1, 0)
    meters.take("token:b", quota, 1, 0)


def test_connections_are_counted_while_they_are_there(meters: QuotaMeters) -> None:
    quota = Quota(connections=2)
    meters.connect("token:a", quota)
    with meters.connected("token:a", quota), pytest.raises(QuotaExceeded) as refused:
        meters.connect("token:a", quota)
    assert refused.value.details["retry_after_ms"]
    meters.connect("token:a", quota)


def test_identities_that_owe_nothing_are_forgotten(hand: Hand) -> None:
    meters = QuotaMeters(hand, most=3)
    meters.connect("token:a", NO_QUOTA)
    meters.take("token:b", Quota(requests_per_s=1), 1, 0)
    for number in range(5):
        meters.take(f"token:{number}", NO_QUOTA, 1, 0)
    assert {"token:a", "token:b"} <= meters.meters.keys() and len(meters.meters) <= 3
    hand.now_s += 2
    meters.take("token:c", NO_QUOTA, 1, 0)
    assert "token:b" not in meters.meters


# -- use of future quota ----------------------------------------------------------------------------------------------

NOW = 1_900_000_000_000


def test_delay_of_a_batch_is_its_latest_time() -> None:
    at = encode({Column.VALUE: [b"a", b"b"], Column.DELIVER_MS: [NOW + 5000, NOW + 70_000]})
    assert ahead_of_batch(at, NOW) == (70_000, 2)
    after = encode({Column.VALUE: [b"a", b"b"], Column.DELIVER_MS: [5000, 0]}, relative=True)
    assert ahead_of_batch(after, NOW) == (5000, 1)
    assert ahead_of_batch(encode({Column.VALUE: [b"a"]}), NOW) == (0, None)
    assert ahead_of_batch(b"nothing", NOW) == (0, None)


@pytest.mark.parametrize(
    ("frame", "delay_ms"),
    [
        ([Type.MOVE, 1, "t", 0, [[b"x", NOW + 9000, False], [b"y", 4000, True]], b""], 9000),
        ([Type.MOVE, 1, "t", 0, [[b"x", None, False, 3]], b""], 0),
        ([Type.ACK_THEN, 1, 7, 0, 5, None, [[None, 8000, True, {}]]], 8000),
        ([Type.SCHEDULE_PUT, 1, "t", 0, [["n", None, {"cron": "* * * * *", "start_ms": NOW + 3}, b"", None]]], 3),
        ([Type.SCHEDULE_PUT, 1, "t", 0, [["n", None, {"every_ms": 60_000}, b"", None]]], 60_000),
        ([Type.JOB_START, 1, "t", 0, b"id", "move", {"to_ms": NOW + 77, "shift_ms": None}], 77),
        ([Type.MOVE, 1, "t"], 0),
        ([Type.MOVE, 1, "t", 0, "no rows"], 0),
        ([Type.JOB_START, 1], 0),
    ],
)
def test_delay_of_a_request_is_found(frame: list[object], delay_ms: int) -> None:
    assert delay_of_request(frame, NOW) == delay_ms


def test_delay_beyond_the_quota_is_not_retriable() -> None:
    check_delay("token:a", Quota(max_delay_ms=1000), 1000)
    with pytest.raises(QuotaExceeded) as refused:
        check_delay("token:a", Quota(max_delay_ms=1000), 1001)
    assert not refused.value.retriable


# -- memory of a compressed batch until its answer --------------------------------------------------------------------


def test_a_compressed_batch_counts_with_its_decompressed_bytes_until_it_is_answered() -> None:
    held: list[int] = []
    connection: Any = SimpleNamespace(hold_request=held.append)
    nothing: Any = None
    produces = ProduceCoalescer(nothing, connection, nothing)
    answers: list[Any] = []
    packed = encode({Column.VALUE: [b"v" * 40_000]}, compress=True)
    more = stored_bytes_of(packed) - len(packed)
    request = Produce("t", 0, 0, 0, 0, 0, packed)
    assert more > 39_000
    with produces._held(request, answers.append) as answer:
        assert held == [more]
    answer("stored")
    assert (held, answers) == ([more, -more], ["stored"])
    with pytest.raises(TooLarge), produces._held(request, answers.append):
        raise TooLarge("refused")
    assert held == [more, -more] * 2 and answers == ["stored"]
    plain = request._replace(batch=encode({Column.VALUE: [b"v"]}))
    with produces._held(plain, answers.append) as answer:
        assert answer == answers.append and len(held) == 4
