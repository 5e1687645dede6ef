from __future__ import annotations

import json
from datetime import timedelta

import msgpack
import pytest

from sandq.model import schema
from sandq.model.dead_letter_settings import ON_EXPIRY, expiry_rule
from sandq.model.errors import InvalidSetting
from sandq.model.key_limits import key_limit
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.model.settings import (
    CLASSES,
    Backoff,
    TopicSettings,
    from_record,
    parse_group_settings,
    parse_settings,
    update_settings,
)

KEYS = [
    *("lease", "max_attempts", "backoff", "ttl", "delete_on_ack", "retention", "retain", "retain_bytes", "group_ttl"),
    *("dedup_window", "ordering", "max_in_flight_per_key", "max_snoozes", "dead_letter_topic"),
    *("max_message_bytes", "max_delay", "max_lease", "max_request_rate", "max_request_burst"),
    *("precision", "on_expiry", "push_targets", "dead_retention", "max_dead_letters"),
]
DAY_S = 86_400
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
    "ttl_ms": None,
    "delete_on_ack": True,
    "retention_ms": 0,
    "retain_ms": None,
    "retain_bytes": None,
    "group_ttl_ms": 604_800_000,
    "dedup_window_ms": 600_000,
    "ordering": "none",
    "max_in_flight_per_key": None,
}
RANKED_RECORD = {key: value for key, value in DEFAULT_RECORD.items() if key != "max_in_flight_per_key"}


def test_default_settings_have_the_documented_values() -> None:
    assert parse_settings({}).record() == DEFAULT_RECORD


def test_every_key() -> None:
    settings = parse_settings(
        {
            "lease": timedelta(minutes=2),
            "max_attempts": "none",
            "backoff": {"kind": "linear", "first": "250ms", "factor": 1.5, "cap": 60, "jitter_percent": "0"},
            "ttl": "1h",
            "delete_on_ack": "false",
            "retention": "90s",
            "retain": "30d",
            "retain_bytes": "2GiB",
            "group_ttl": "none",
            "dedup_window": 0,
            "ordering": "key",
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
        "ttl_ms": 3_600_000,
        "delete_on_ack": False,
        "retention_ms": 90_000,
        "retain_ms": 2_592_000_000,
        "retain_bytes": 2 * 1024**3,
        "group_ttl_ms": None,
        "dedup_window_ms": 0,
        "ordering": "key",
        "max_in_flight_per_key": None,
    }


NONE_IS_A_VALUE = {
    "max_attempts": "max_attempts",
    "ttl": "ttl_ms",
    "retain": "retain_ms",
    "retain_bytes": "retain_bytes",
    "group_ttl": "group_ttl_ms",
    "max_in_flight_per_key": "max_in_flight_per_key",
}


@pytest.mark.parametrize("key", NONE_IS_A_VALUE)
def test_none_is_a_value_of_some_settings(key: str) -> None:
    for nothing in (None, "none"):
        assert parse_settings({key: nothing}).record()[NONE_IS_A_VALUE[key]] is None


@pytest.mark.parametrize("kind", [TIMER, PRIORITY, FAIR])
def test_automatic_precision_is_not_in_the_record(kind: str) -> None:
    record = parse_settings({"precision": "20ms"}, kind).record()
    assert record["precision_ms"] == 20
    assert "precision_ms" not in update_settings(record, {"precision": "auto"}, kind).record()
    with pytest.raises(InvalidSetting, match=r"^precision: 'none' is not a duration"):
        parse_settings({"precision": "none"}, kind)


@pytest.mark.parametrize("key", ["lease", "retention", "dedup_window", "ordering", "delete_on_ack"])
def test_and_not_of_others(key: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{key}: "):
        parse_settings({key: None})


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
    # type: ignore[dict-item]
    newer = {**DEFAULT_RECORD, "colour": "red", "backoff": {**DEFAULT_RECORD["backoff"], "phase": 1}}
    assert from_record(newer).record() == DEFAULT_RECORD


@pytest.mark.parametrize(
    ("key", "least", "greatest"),
    [
        ("lease", 1, 43_200),
        ("max_attempts", 1, 1000),
        ("ttl", 0.001, 366 * DAY_S),
        ("retention", 0, 366 * DAY_S),
        ("retain", 1, 3660 * DAY_S),
        ("retain_bytes", 1024**2, 1024**5),
        ("group_ttl", 60, 366 * DAY_S),
        ("dedup_window", 0, 7 * DAY_S),
        ("max_in_flight_per_key", 1, 1000),
        ("precision", 0.001, 1),
    ],
)
def test_ranges_include_their_ends(key: str, least: float, greatest: int) -> None:
    more = {"delete_on_ack": False}
    for inside in (least, greatest):
        parse_settings({key: inside, **more})
    outsides = [greatest + 1] if not least else [0 if least < 1 else int(least) - 1, greatest + 1]
    for outside in outsides:
        with pytest.raises(InvalidSetting, match=f"^{key}: .*( is not within|more than ten years)"):
            parse_settings({key: outside, **more})


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
        ({"zzz": 1}, "zzz: unknown key; known are " + ", ".join(sorted(KEYS))),
        ({"lease_ms": 5}, "lease_ms: unknown key; did you mean 'lease'?"),
        ({"backoff": 5}, "backoff: a mapping of keys is expected, not 5"),
        ({"backoff": None}, "backoff: a mapping of keys is expected, not None"),
        ({"lease": float("nan")}, "lease: nan is not a duration: it must be finite"),
        ({"max_attempts": 1.5}, "max_attempts: 1.5 is not a whole number"),
        ({"max_attempts": "9" * 100}, f"max_attempts: '{'9' * 59}... is not a whole number"),
        ({"backoff": {"factor": float("nan")}}, "backoff.factor: nan should be greater than or equal to 1"),
        ({5: 6}, "5: Keys should be strings (given 5)"),
        ({"ttl": "400d"}, "ttl: 400d is not within 1ms to 366d"),
        ({"group_ttl": "5s"}, "group_ttl: 5s is not within 1m to 366d"),
        (
            {"retain_bytes": "much", "delete_on_ack": False},
            "retain_bytes: 'much' is not a size: bytes, or text like \"64MiB\" is expected",
        ),
        ({"ordering": "time"}, "ordering: 'time' should be 'none' or 'key'"),
        ({"retain": "1d"}, "retain: it goes with delete_on_ack false only; otherwise it must be none"),
        (
            {"retain": "1d", "retain_bytes": "1MiB"},
            "retain: it goes with delete_on_ack false only; otherwise it must be none; "
            "retain_bytes: it goes with delete_on_ack false only; otherwise it must be none",
        ),
    ],
)
def test_mistake_is_described(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_settings(mapping)
    assert caught.value.message == message


def test_update_changes_only_named_settings() -> None:
    record = parse_settings(
        {"lease": "1m", "backoff": {"kind": "linear", "first": "3s"}, "ttl": "1h", "ordering": "key"}
    ).record()
    changed = update_settings(record, {"max_attempts": None, "backoff": {"first": "5s"}, "ordering": "key"}).record()
    expected = record | {"max_attempts": None, "backoff": record["backoff"] | {"first_ms": 5000}}
    assert changed == expected
    assert update_settings(changed, {"ttl": "none"}).record() == expected | {"ttl_ms": None}
    assert update_settings(changed, {}).record() == expected
    assert update_settings({}, {}).record() == DEFAULT_RECORD


def test_an_update_back_to_a_default_is_one() -> None:
    record = parse_settings({"max_attempts": 3, "backoff": {"factor": 3}}).record()
    changed = update_settings(record, {"max_attempts": 10, "backoff": {"factor": 2}})
    assert changed.record() == DEFAULT_RECORD


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"ordering": "key"}, "^ordering: it is 'none' since the topic was created"),
        ({"retain": "1d"}, "^retain: it goes with delete_on_ack false only"),
        ({"zzz": 1, "lease": 0}, "^(?=.*zzz: unknown key)(?=.*lease: 0s is not within)"),
        ({"backoff": {"first": "8d"}}, r"^backoff\.first: "),
    ],
)
def test_an_update_that_is_refused(mapping: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        update_settings(DEFAULT_RECORD, mapping)


def test_delete_on_ack_with_retain_is_refused() -> None:
    record = parse_settings({"delete_on_ack": False, "retain": "1d"}).record()
    with pytest.raises(InvalidSetting, match=r"^retain: "):
        update_settings(record, {"delete_on_ack": True})
    assert update_settings(record, {"delete_on_ack": True, "retain": None}).record() == DEFAULT_RECORD


def test_update_keeps_values_that_were_accepted_before() -> None:
    older = parse_settings({}).record() | {"lease_ms": 1}
    assert update_settings(older, {"ttl": "1s"}).lease_ms == 1


def test_settings_of_a_group() -> None:
    assert parse_group_settings({}) == {}
    assert parse_group_settings({"max_attempts": "none"}) == {"max_attempts": None}
    assert parse_group_settings({"max_attempts": 5, "backoff": {"kind": "fixed"}}) == {
        "max_attempts": 5,
        "backoff": DEFAULT_RECORD["backoff"] | {"kind": "fixed"},  # type: ignore[operator]
    }
    with pytest.raises(
        InvalidSetting,
        match=r"^lease: unknown key; known are backoff, max_attempts, max_in_flight_per_key, max_snoozes, on_expiry$",
    ):
        parse_group_settings({"lease": "1m"})
    with pytest.raises(InvalidSetting, match=r"^max_attempts: 0 .*; backoff\.cap: "):
        parse_group_settings({"max_attempts": 0, "backoff": {"cap": "9d"}})


@pytest.mark.parametrize("kind", CLASSES)
def test_a_record_has_a_bound_of_snoozes_only_where_there_is_one(kind: str) -> None:
    without = parse_settings({}, kind).record()
    assert "max_snoozes" not in without
    record = parse_settings({"max_snoozes": "3"}, kind).record()
    assert record == without | {"max_snoozes": 3}
    assert update_settings(record, {"lease": "1m"}, kind).max_snoozes == 3
    assert update_settings(record, {"max_snoozes": "none"}, kind).record() == without
    assert parse_settings({"max_snoozes": 0}, kind).record()["max_snoozes"] == 0


def test_a_group_may_have_no_bound_of_snoozes_where_its_topic_has_one() -> None:
    assert parse_group_settings({"max_snoozes": "none"}) == {"max_snoozes": None}
    assert parse_group_settings({"max_snoozes": "7"}) == {"max_snoozes": 7}
    with pytest.raises(InvalidSetting, match=r"^max_snoozes: -1 is not within 0 to 1000000$"):
        parse_group_settings({"max_snoozes": -1})


@pytest.mark.parametrize("kind", [TIMER, PRIORITY, FAIR])
def test_record_has_on_expiry_only_if_expired_messages_are_dropped(kind: str) -> None:
    without = parse_settings({}, kind).record()
    assert parse_settings({"on_expiry": "dead"}, kind).record() == without and ON_EXPIRY not in without
    record = parse_settings({"on_expiry": "drop"}, kind).record()
    assert record == without | {"on_expiry": "drop"}
    assert update_settings(record, {"lease": "1m"}, kind).record()["on_expiry"] == "drop"
    assert update_settings(record, {"on_expiry": "dead"}, kind).record() == without


def test_group_overrides_on_expiry() -> None:
    assert parse_group_settings({"on_expiry": "dead"}) == {"on_expiry": "dead"}
    assert expiry_rule({}, {}) == expiry_rule({"on_expiry": "drop"}, {"on_expiry": "dead"}) == "dead"
    assert expiry_rule({"on_expiry": "drop"}, {}) == expiry_rule({}, {"on_expiry": "drop"}) == "drop"
    with pytest.raises(InvalidSetting, match=r"^on_expiry: "):
        parse_group_settings({"on_expiry": "ignore"})


def test_compacted_topic_refuses_on_expiry() -> None:
    words = "^on_expiry: a compacted topic does not have it: its ttl deletes keys; give it to a topic of another kind$"
    with pytest.raises(InvalidSetting, match=words):
        parse_settings({"on_expiry": "drop"}, COMPACTED)
    with pytest.raises(InvalidSetting, match=words):
        parse_group_settings({"on_expiry": "drop"}, parse_settings({}, COMPACTED).record())


@pytest.mark.parametrize("kind", CLASSES)
def test_record_has_limits_of_dead_letters_only_if_they_are_set(kind: str) -> None:
    without = parse_settings({}, kind).record()
    record = parse_settings({"dead_retention": "30d", "max_dead_letters": "1000"}, kind).record()
    assert record == without | {"dead_retention_ms": 30 * DAY_S * 1000, "max_dead_letters": 1000}
    assert update_settings(record, {"max_dead_letters": "none", "dead_retention": None}, kind).record() == without


@pytest.mark.parametrize("kind", CLASSES)
def test_dead_retention_below_the_lease_is_refused(kind: str) -> None:
    words = r"^dead_retention: the lease \(1m\) is longer than it \(59s\): raise it, or shorten that$"
    with pytest.raises(InvalidSetting, match=words):
        parse_settings({"lease": "1m", "dead_retention": "59s"}, kind)
    record = parse_settings({"lease": "1m", "dead_retention": "1m"}, kind).record()
    with pytest.raises(InvalidSetting, match=r"^dead_retention: the lease \(2m\) is longer"):
        update_settings(record, {"lease": "2m"}, kind)


def test_a_limit_for_each_key() -> None:
    record = parse_settings({"max_in_flight_per_key": "3"}).record()
    assert (record["max_in_flight_per_key"], record["ordering"]) == (3, "none")
    assert parse_settings({"max_in_flight_per_key": "none"}).record() == DEFAULT_RECORD
    assert update_settings(record, {"max_in_flight_per_key": 3, "lease": "1m"}).lease_ms == 60_000
    for other, was in ((4, "3"), ("none", "3")):
        with pytest.raises(InvalidSetting, match=rf"^max_in_flight_per_key: it is {was} since the topic was created"):
            update_settings(record, {"max_in_flight_per_key": other})
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: it is none since the topic was created"):
        update_settings(DEFAULT_RECORD, {"max_in_flight_per_key": 3})
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: it does not go with ordering key"):
        parse_settings({"max_in_flight_per_key": 1, "ordering": "key"})
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: only timer topics have it$"):
        parse_settings({"max_in_flight_per_key": 2}, COMPACTED)


def test_a_group_may_have_a_lower_limit_for_each_key() -> None:
    topic = parse_settings({"max_in_flight_per_key": 3}).record()
    for mine in (1, 3):
        own = parse_group_settings({"max_in_flight_per_key": mine}, topic)
        assert own == {"max_in_flight_per_key": mine}
        assert key_limit(topic, own) == mine
    assert key_limit(topic) == 3
    assert key_limit(topic, {"max_in_flight_per_key": 5}) == 3, "for any origin of the setting"
    assert key_limit(parse_settings({"ordering": "key"}).record()) == 1
    assert key_limit(DEFAULT_RECORD) is key_limit({}) is None
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: 4 is more than the topic's, which is 3$"):
        parse_group_settings({"max_in_flight_per_key": 4}, topic)
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: 2 is more than the topic's, which is 1$"):
        parse_group_settings({"max_in_flight_per_key": 2}, parse_settings({"ordering": "key"}).record())
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: the topic has none"):
        parse_group_settings({"max_in_flight_per_key": 1}, DEFAULT_RECORD)
    for wrong in (0, 1001, "none"):
        with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: "):
            parse_group_settings({"max_in_flight_per_key": wrong}, topic)


@pytest.mark.parametrize("kind", ["fixed", "linear", "exponential"])
def test_a_first_pause_that_the_cap_would_cut_short(kind: str) -> None:
    backoff = {"kind": kind, "first": "6h"}
    with pytest.raises(InvalidSetting, match=r"backoff\.first: 6h is longer than backoff\.cap \(10m\)"):
        parse_settings({"backoff": backoff})
    with pytest.raises(InvalidSetting, match="raise the cap"):
        parse_group_settings({"backoff": backoff})
    with pytest.raises(InvalidSetting, match="raise the cap"):
        update_settings(parse_settings({}).record(), {"backoff": backoff})
    assert parse_settings({"backoff": {**backoff, "cap": "6h"}}).backoff.first_ms == 21_600_000
    assert parse_settings({"backoff": {**backoff, "kind": "none"}}).backoff.kind == "none"


# -- priority and fair topics -----------------------------------------------------------------------------------------

RANKED_KEYS = {*KEYS} - {"ordering", "max_in_flight_per_key"}


def test_a_priority_topic_has_a_rank_and_an_ageing() -> None:
    assert parse_settings({}, PRIORITY).record() == RANKED_RECORD | {"rank": "priority", "ageing_ms": None}
    settings = parse_settings({"ageing": "30s", "lease": "1m"}, PRIORITY)
    assert settings.record() == RANKED_RECORD | {"rank": "priority", "ageing_ms": 30_000, "lease_ms": 60_000}
    assert update_settings(settings.record(), {"ageing": "none"}, PRIORITY).record()["ageing_ms"] is None
    assert {*schema.keys_of(CLASSES[PRIORITY])} == {*RANKED_KEYS, "ageing"}
    assert {*schema.keys_of(CLASSES[FAIR])} == {*RANKED_KEYS, "ageing", "tenants"}


def test_a_fair_topic_keeps_its_tenants_sorted() -> None:
    assert parse_settings({}, FAIR).record() == RANKED_RECORD | {"rank": "fair", "ageing_ms": None, "tenants": []}
    given = {"*": {"max_in_flight": 5}, "acme": {"weight": 3}, "acme.*": {"weight": "2", "max_in_flight": "none"}}
    rows = [["*", 1, 5], ["acme", 3, None], ["acme.*", 2, None]]
    for tenants in (given, json.dumps(given)):
        settings = parse_settings({"tenants": tenants}, FAIR)
        assert settings.record()["tenants"] == rows
        record = msgpack.unpackb(msgpack.packb(settings.record()))
        assert from_record(record, FAIR) == settings and from_record(record, FAIR).record() == record
    changed = update_settings(settings.record(), {"tenants": {"b": {}}}, FAIR).record()
    assert changed["tenants"] == [["b", 1, None]], "the setting is changed as a whole"
    assert update_settings(changed, {"lease": 5}, FAIR).record()["tenants"] == [["b", 1, None]]


@pytest.mark.parametrize(
    ("kind", "mapping", "words"),
    [
        (PRIORITY, {"ageing": "999ms"}, "^ageing: 999ms is not within 1s to 366d$"),
        (PRIORITY, {"ageing": "367d"}, "^ageing: 367d is not within"),
        (PRIORITY, {"ordering": "none"}, "^ordering: unknown key"),
        (PRIORITY, {"max_in_flight_per_key": 2}, "^max_in_flight_per_key: only timer topics have it$"),
        (FAIR, {"max_in_flight_per_key": 2}, "^max_in_flight_per_key: only timer topics have it$"),
        (PRIORITY, {"rank": "fair"}, "^rank: unknown key"),
        (PRIORITY, {"tenants": {}}, "^tenants: unknown key"),
        (TIMER, {"ageing": "1m"}, "^ageing: unknown key"),
        (FAIR, {"retain": "1d"}, "^retain: it goes with delete_on_ack false only"),
        (FAIR, {"tenants": None}, "^tenants: a mapping of tenants is expected$"),
        (FAIR, {"tenants": [["a", 1, None]]}, "^tenants: a mapping of tenants is expected$"),
        (FAIR, {"tenants": "a=3"}, "^tenants: a mapping of tenants, or JSON text of one, is expected: "),
        (FAIR, {"tenants": "[" * 100_000}, "^tenants: a mapping of tenants"),
        (FAIR, {"tenants": {"a": {"weight": 0}}}, r"^tenants\.a\.weight: 0 is not within 1 to 1000$"),
        (FAIR, {"tenants": {"a": {"weight": 1001}}}, r"^tenants\.a\.weight: 1001 is not within"),
        (FAIR, {"tenants": {"a": {"max_in_flight": 0}}}, r"^tenants\.a\.max_in_flight: 0 is not within 1 to 1000000$"),
        (FAIR, {"tenants": {"a": {"wait": 0}}}, r"^tenants\.a\.wait: unknown key"),
        (FAIR, {"tenants": {"a": 5}}, r"^tenants\.a: a mapping of keys is expected, not 5$"),
        (FAIR, {"tenants": {"a..b": {}}}, r"^tenants: 'a\.\.b' is no pattern: "),
        (FAIR, {"tenants": {"a*": {}}}, r"^tenants: 'a\*' is no pattern: "),
        (FAIR, {"tenants": {".*": {}}}, r"^tenants: '\.\*' is no pattern: "),
        (FAIR, {"tenants": {f"t{n}": {} for n in range(1001)}}, "^tenants: 1001 patterns; 1000 are allowed$"),
    ],
)
def test_settings_that_such_topics_do_not_have(kind: str, mapping: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        parse_settings(mapping, kind)


# -- dead letter topics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timer", PRIORITY, FAIR])
def test_record_has_dead_letter_topic_only_if_set(kind: str) -> None:
    without = parse_settings({}, kind).record()
    assert "dead_letter_topic" not in without
    record = parse_settings({"dead_letter_topic": "failed"}, kind).record()
    assert record == without | {"dead_letter_topic": "failed"}
    assert update_settings(record, {"lease": "1m"}, kind).record()["dead_letter_topic"] == "failed"
    assert update_settings(record, {"dead_letter_topic": "none"}, kind).record() == without
    with pytest.raises(InvalidSetting, match="topic name 'a b' is not allowed"):
        parse_settings({"dead_letter_topic": "a b"}, kind)


def test_dead_letters_of_a_compacted_topic_stay() -> None:
    with pytest.raises(InvalidSetting, match="dead_letter_topic: unknown key"):
        parse_settings({"dead_letter_topic": "failed"}, "compacted")
