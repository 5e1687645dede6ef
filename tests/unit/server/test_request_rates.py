"""Tests of the limit of requests per second for each client of a topic."""

from __future__ import annotations

import pytest

from sandq.model.caller import Caller
from sandq.model.errors import Throttled
from sandq.model.settings import parse_settings
from sandq.protocol.frames import Type
from sandq.server.request_rates import RATED, RequestRates

ADA, BOB = Caller("anonymous", "192.0.2.1:5000"), Caller("anonymous", "192.0.2.2:5000")
PER_S = parse_settings({"max_request_rate": "10/s", "max_request_burst": 3}).record()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# type: ignore[type-arg]
def refused(rates: RequestRates, caller: Caller = ADA, topic: str = "t", settings: dict = PER_S) -> int:
    """Return the milliseconds until the next allowed request. 0: the request was accepted."""
    try:
        rates.take(topic, settings, caller)
    except Throttled as error:
        wait_ms = error.details["retry_after_ms"]
        assert isinstance(wait_ms, int) and "10/s requests per client, 3 at once" in error.message
        return wait_ms
    return 0


def test_a_burst_and_then_by_the_rate(clock: Clock) -> None:
    rates = RequestRates(clock)
    assert [refused(rates) for _ in range(5)] == [0, 0, 0, 100, 100]
    clock.now += 0.04
    assert refused(rates) == 60
    clock.now += 0.06
    assert [refused(rates), refused(rates)] == [0, 100]
    clock.now += 3600  # at most one burst comes at once
    assert [refused(rates) for _ in range(4)] == [0, 0, 0, 100]


def test_over_a_long_time_the_rate_is_kept(clock: Clock) -> None:
    rates, through = RequestRates(clock), 0
    for _ in range(10_000):
        through += not refused(rates)
        clock.now += 0.01
    assert 1000 <= through <= 1003


def test_clients_and_topics_apart(clock: Clock) -> None:
    rates = RequestRates(clock)
    for _ in range(3):
        assert refused(rates) == 0
    assert refused(rates, Caller("anonymous", "192.0.2.1:6000")) == 100  # another connection of the same machine
    assert refused(rates, BOB) == 0
    assert refused(rates, topic="other") == 0
    assert refused(rates, Caller("ada", "192.0.2.1:5000")) == 0  # a caller that identifies itself
    six = [Caller("anonymous", f"[2001:db8::{end}]:1") for end in "1234"]
    assert [refused(rates, one) for one in six] == [0, 0, 0, 100]


def test_without_a_rate_nothing_is_kept(clock: Clock) -> None:
    rates = RequestRates(clock)
    assert [refused(rates, settings=parse_settings({}).record()) for _ in range(9)] == 9 * [0]
    assert len(rates) == 0


def test_without_a_burst_those_of_a_second_come_at_once(clock: Clock) -> None:
    for rate, at_once in (("50/s", 50), ("10/m", 1)):
        rates, settings = RequestRates(clock), parse_settings({"max_request_rate": rate}).record()
        for _ in range(at_once):
            rates.take("t", settings, ADA)
        with pytest.raises(Throttled):
            rates.take("t", settings, ADA)


def test_simultaneous_requests_are_charged_later(clock: Clock) -> None:
    rates = RequestRates(clock)
    rates.take("t", PER_S, ADA, 13)
    assert refused(rates) == 1100
    clock.now += 1.1
    assert [refused(rates), refused(rates)] == [0, 100]


def test_a_setting_that_changes_holds_at_once(clock: Clock) -> None:
    rates = RequestRates(clock)
    for _ in range(3):
        rates.take("t", PER_S, ADA)
    rates.take("t", parse_settings({"max_request_rate": "100/s"}).record(), ADA)
    rates.take("t", parse_settings({}).record(), ADA)


def test_a_rate_that_is_raised_is_not_waited_for(clock: Clock) -> None:
    rates, slow = RequestRates(clock), parse_settings({"max_request_rate": "10/d"}).record()
    rates.take("t", slow, ADA, 20)
    with pytest.raises(Throttled):
        rates.take("t", slow, ADA)
    assert [refused(rates) for _ in range(4)] == [0, 0, 0, 100]


def test_buckets_are_bounded(clock: Clock) -> None:
    rates = RequestRates(clock, clients=2)
    assert [refused(rates, ADA), refused(rates, BOB)] == [0, 0]
    others = [Caller("anonymous", f"198.51.100.{end}:1") for end in range(9)]
    assert [bool(refused(rates, one)) for one in others] == 3 * [False] + 6 * [True]  # these callers share one limit
    assert refused(rates, ADA) == 0 and len(rates) == 3
    clock.now += 60  # all limits are full again, so they can be forgotten
    assert [refused(rates, one) for one in others[:2]] == [0, 0]
    assert len(rates) == 2


def test_settling_request_is_not_counted() -> None:
    assert RATED.isdisjoint({Type.ACK, Type.NACK, Type.EXTEND, Type.ACK_THEN, Type.CREDIT, Type.UNSUBSCRIBE})
    assert RATED.isdisjoint({Type.TOPIC_UPDATE, Type.METADATA, Type.GROUP_LIST, Type.CLUSTER_INFO})
