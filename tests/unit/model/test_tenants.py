"""Tests of the tenant settings of a fair topic: rates as users write them, parsed and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.client.json_format import settings_json
from sandq.model.errors import InvalidSetting
from sandq.model.names import FAIR
from sandq.model.rates import as_mapping
from sandq.model.settings import FairSettings, parse_settings


def rows_of(tenants: object) -> list[list[object]]:
    settings = parse_settings({"tenants": tenants}, FAIR)
    assert isinstance(settings, FairSettings)
    return settings.tenants


@pytest.mark.parametrize(
    ("rate", "interval_us", "burst"),
    [
        (5, 200_000, 1),
        (0.5, 2_000_000, 1),
        ("100/s", 10_000, 10),
        ("100000/s", 10, 10_000),
        ("90/m", 666_667, 1),
        ("1/d", 86_400_000_000, 1),
    ],
)
def test_rates(rate: object, interval_us: int, burst: int) -> None:
    assert rows_of({"a": {"rate": rate}}) == [["a", 1, None, interval_us, burst]]
    assert rows_of({"a": {"rate": rate, "burst": 7}}) == [["a", 1, None, interval_us, 7]]


@pytest.mark.parametrize(
    "rate",
    [
        0,
        -1,
        "5/y",
        "fast",
        True,
        "1/2/s",
        float("nan"),
        "inf/s",
        200_000,
        "0.5/d",
        [],
        "",
        "5/",
        "1_0/s",
        " 5/s",
        1e-320,
        10**400,
        b"5/s",
    ],
)
def test_invalid_rate_is_refused(rate: object) -> None:
    with pytest.raises(InvalidSetting, match="rate"):
        rows_of({"a": {"rate": rate}})


def test_a_burst_goes_with_a_rate_only() -> None:
    with pytest.raises(InvalidSetting, match="a burst needs a rate"):
        rows_of({"a": {"burst": 5}})


@given(st.integers(10, 86_400_000_000), st.integers(1, 1_000_000))
def test_shown_rates_can_be_parsed(interval_us: int, burst: int) -> None:
    rows = [["a", 3, None, interval_us, burst], ["b.*", 1, 5]]
    assert rows_of(as_mapping(rows)) == rows


def test_shown_tenants_can_be_written_back() -> None:
    given = {"a": {"rate": "5/s", "burst": 7}, "b.*": {"weight": 3}, "*": {"max_in_flight": 4, "rate": "1/d"}}
    record = parse_settings({"tenants": given}, FAIR).record()
    shown = settings_json(record, FAIR)["tenants"]
    assert shown["a"] == {"weight": 1, "max_in_flight": None, "rate": "5/s", "burst": 7}
    assert shown["b.*"] == {"weight": 3, "max_in_flight": None}
    assert rows_of(shown) == record["tenants"]
