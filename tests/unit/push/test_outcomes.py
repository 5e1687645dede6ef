"""Tests of the outcome of a message by the reply of the receiver."""

from __future__ import annotations

import pytest

from sandq.push.outcomes import End, Outcome, outcome_of, retry_after_s

NOW_S = 1_800_000_000.5


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_acks(status: int) -> None:
    assert outcome_of(status, "thanks", "5", NOW_S) == Outcome(End.ACKED, status=status)


def test_410_is_dead() -> None:
    assert outcome_of(410, "no such user", "5", NOW_S) == Outcome(End.DEAD, "HTTP 410: no such user", status=410)


@pytest.mark.parametrize("status", [300, 400, 401, 404, 408, 422, 500, 502, 503, 504, 429, 599])
def test_other_statuses_are_retried_with_backoff(status: int) -> None:
    outcome = outcome_of(status, "", None, NOW_S)
    assert (outcome.end, outcome.delay_s) == (End.RETRIED, None) and outcome.is_failure


def test_redirects_are_reported() -> None:
    assert outcome_of(302, "", "5", NOW_S) == Outcome(End.RETRIED, "HTTP 302 (redirects are not followed)", status=302)


def test_retry_after_is_followed() -> None:
    assert outcome_of(429, "slow", "7", NOW_S) == Outcome(End.SNOOZED, "HTTP 429: slow", 7, 429)
    assert outcome_of(503, "", "7", NOW_S) == Outcome(End.RETRIED, "HTTP 503", 7, 503)
    assert outcome_of(500, "", "7", NOW_S) == Outcome(End.RETRIED, "HTTP 500", status=500)
    assert outcome_of(429, "", "soon", NOW_S) == Outcome(End.RETRIED, "HTTP 429", status=429)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("999999999999999999999999", 86_400),
        ("86401", 86_400),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        ("٣", None),
        (None, None),
        ("Fri, 15 Jan 2027 08:00:10 GMT", 10),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("Fri, 15 Jan 2027 08:00:10", 10),
        ("Fri, 15 Jan 2038 08:00:00 GMT", 86_400),
        ("Fri, 99 Jan 2027 08:00:00 GMT", None),
        ("Fri, 15 Jan 99999 08:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: int | None) -> None:
    assert retry_after_s(text, NOW_S) == seconds
