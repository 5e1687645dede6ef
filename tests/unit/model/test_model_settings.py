from __future__ import annotations

from datetime import timedelta

import msgpack
import pytest

from sandq.model.errors import InvalidSetting
from sandq.model.settings import Backoff, TopicSettings, from_record, parse_settings

DEFAULT_RECORD = {
    "lease_ms": 30_000,
    "max_attempts": 10,
    "backoff": {
        "kind": "exponential",
        "first_ms": 1000,
        "factor_permille": 2000,
        "cap_ms": 600_000,
        "jitter_percent": 20,
    },
    "delete_on_ack": True,
}


def test_the_defaults_are_the_designs() -> None:
    assert parse_settings({}).record() == DEFAULT_RECORD


def test_every_key() -> None:
    settings = parse_settings(
        {
            "lease": timedelta(minutes=2),
            "max_attempts": "none",
            "backoff": {"kind": "linear", "first": "250ms", "factor": 1.5, "cap": 60, "jitter_percent": "0"},
            "delete_on_ack": "false",
        }
    )
    assert settings.record() == {
        "lease_ms": 120_000,
        "max_attempts": None,
        "backoff": {
            "kind": "linear",
            "first_ms": 250,
            "factor_permille": 1500,
            "cap_ms": 60_000,
            "jitter_percent": 0,
        },
        "delete_on_ack": False,
    }
    assert parse_settings({"max_attempts": None}).max_attempts is None


@pytest.mark.parametrize("mapping", [{}, {"max_attempts": None, "lease": 7}, {"backoff": {"factor": 1.25}}])
def test_a_record_crosses_msgpack(mapping: dict[str, object]) -> None:
    settings = parse_settings(mapping)
    record = msgpack.unpackb(msgpack.packb(settings.record()))
    assert from_record(record) == settings
    assert from_record(record).record() == record


def test_a_record_of_another_version() -> None:
    assert from_record({}) == TopicSettings()
    older = {"lease_ms": 5000, "backoff": {"kind": "fixed"}}
    assert from_record(older) == TopicSettings(lease=5, backoff=Backoff(kind="fixed"))
    newer = {**DEFAULT_RECORD, "colour": "red", "backoff": {**DEFAULT_RECORD["backoff"], "phase": 1}}  # type: ignore[dict-item]
    assert from_record(newer).record() == DEFAULT_RECORD


@pytest.mark.parametrize(
    ("key", "least", "greatest"),
    [("lease", 1, 43_200), ("max_attempts", 1, 1000)],
)
def test_ranges_include_their_ends(key: str, least: int, greatest: int) -> None:
    for inside in (least, greatest):
        parse_settings({key: inside})
    for outside in (least - 1, greatest + 1):
        with pytest.raises(InvalidSetting, match=f"^{key}: .* is not within"):
            parse_settings({key: outside})


def test_every_mistake_is_named_with_its_path() -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_settings(
            {
                "leese": 1,
                "lease": "0s",
                "max_attempts": True,
                "backoff": {"knd": 1, "kind": "sometimes", "first": -1, "factor": True, "jitter_percent": 101},
                "delete_on_ack": "perhaps",
            }
        )
    assert sorted(caught.value.details["mistakes"]) == [  # type: ignore[call-overload]
        "backoff.factor: a number is expected, not true or false",
        "backoff.first: -1 is not a duration: it must not be negative",
        "backoff.jitter_percent: 101 is not within 0 to 100",
        "backoff.kind: 'sometimes' should be 'exponential', 'fixed', 'linear' or 'none'",
        "backoff.knd: unknown key; did you mean 'kind'?",
        "delete_on_ack: 'perhaps' should be a valid boolean, unable to interpret input",
        "lease: 0s is not within 1s to 12h",
        "leese: unknown key; did you mean 'lease'?",
        "max_attempts: True is not a whole number",
    ]
    assert caught.value.message.count("; ") >= 8


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"zzz": 1}, "zzz: unknown key; known are backoff, delete_on_ack, lease, max_attempts"),
        ({"lease_ms": 5}, "lease_ms: unknown key; did you mean 'lease'?"),
        ({"backoff": 5}, "backoff: a mapping of keys is expected, not 5"),
        ({"backoff": None}, "backoff: a mapping of keys is expected, not None"),
        ({"lease": float("nan")}, "lease: nan is not a duration: it must be finite"),
        ({"max_attempts": 1.5}, "max_attempts: 1.5 is not a whole number"),
        ({"max_attempts": "9" * 100}, f"max_attempts: '{'9' * 59}... is not a whole number"),
        ({"backoff": {"factor": float("nan")}}, "backoff.factor: nan should be greater than or equal to 1"),
        ({5: 6}, "5: Keys should be strings (given 5)"),
    ],
)
def test_one_mistake(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_settings(mapping)
    assert caught.value.message == message
