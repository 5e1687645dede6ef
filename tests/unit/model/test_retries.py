"""Retry rules of single messages: the same spelling and checks as the settings of topics."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.retries import (
    UNLIMITED,
    MessageRules,
    backoff_record,
    is_backoff,
    is_cost,
    is_max_attempts,
    pack_backoff,
    parse_rules,
    written_rules,
)
from sandq.model.settings import parse_settings
from tests.support.examples import examples

GIVEN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1002),
    st.floats(),
    st.sampled_from(
        ["none", "fixed", "linear", "exponential", "", "1h", "90s", "7d", "8d", "5", "1.5", "20", "-1", b"a"]
    ),
    st.timedeltas(timedelta(-1), timedelta(9)),
)


@settings(max_examples=examples(2000), deadline=None)
@given(
    backoff=st.one_of(
        GIVEN, st.dictionaries(st.sampled_from(["kind", "first", "factor", "cap", "jitter_percent", "other"]), GIVEN)
    )
)
def test_backoff_is_read_as_the_setting_of_a_topic(backoff: Any) -> None:
    if backoff is None:
        return
    try:
        wanted = pack_backoff(parse_settings({"backoff": backoff}).record()["backoff"])
    except InvalidSetting:
        with pytest.raises(InvalidRequest, match=r"^backoff"):
            parse_rules(None, backoff)
        return
    rules = parse_rules(None, backoff)
    assert rules == MessageRules(None, wanted)
    assert is_backoff(wanted)
    assert parse_rules(None, written_rules(*rules)["backoff"]) == rules


@settings(max_examples=examples(500), deadline=None)
@given(most=GIVEN)
def test_max_attempts_is_read_as_the_setting_of_a_topic(most: Any) -> None:
    if most is None:
        return
    try:
        wanted = parse_settings({"max_attempts": most}).record()["max_attempts"]
    except InvalidSetting:
        with pytest.raises(InvalidRequest, match=r"^max_attempts: "):
            parse_rules(most, None)
        return
    rules = parse_rules(most, None)
    assert rules == MessageRules(UNLIMITED if wanted is None else wanted, None)
    assert is_max_attempts(rules.max_attempts)
    assert parse_rules(written_rules(*rules)["max_attempts"], None) == rules


@settings(max_examples=examples(2000), deadline=None)
@given(data=st.binary(max_size=70))
def test_any_bytes_are_a_backoff_or_refused(data: bytes) -> None:
    if is_backoff(data):
        assert pack_backoff(backoff_record(data)) == data


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        (
            {"first": "1h"},
            "backoff.first: 1h is longer than backoff.cap (10m), and no message waits longer: raise the cap",
        ),
        ({"firts": "1h"}, "backoff.firts: unknown key; known are cap, factor, first, jitter_percent, kind"),
        ({"kind": "slow"}, "backoff.kind: 'exponential', 'fixed', 'linear' or 'none' is expected, not 'slow'"),
        ({"factor": 0.5}, "backoff.factor: 0.5 is not within 1 to 100"),
        ({"cap": "8d"}, "backoff.cap: 8d is not within 0s to 7d"),
        ({"jitter_percent": 101}, "backoff.jitter_percent: 101 is not within 0 to 100"),
        ("fixed", "backoff: a mapping of keys is expected, not 'fixed'"),
    ],
)
def test_wrong_backoff_names_the_key_and_the_remedy(backoff: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_rules(None, backoff)
    assert raised.value.message == text


@pytest.mark.parametrize(
    ("given", "cost"), [(None, None), (1, None), ("1", None), (2, 2), ("1200", 1200), (10**9, 10**9)]
)
def test_cost_is_a_rule_unless_it_is_one(given: Any, cost: int | None) -> None:
    assert parse_rules(cost=given) == MessageRules(cost=cost)
    assert written_rules(*MessageRules(cost=cost)) == ({} if cost is None else {"cost": cost})


@pytest.mark.parametrize("given", [0, -1, 10**9 + 1, 1.5, True, "x", "", [1], 2**70])
def test_wrong_cost_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^cost: "):
        parse_rules(cost=given)
    assert not is_cost(given)
