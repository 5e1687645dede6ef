"""Tests of settings records from outside the cluster: the rules of topic creation apply to them."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidSetting
from sandq.model.group_limits import GROUP_LIMITS, parse_limit, with_limit
from sandq.model.names import AUTO_CREATED
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC
from sandq.model.settings import CLASSES, parse_settings
from sandq.model.stored_settings import checked_record

BIG = 2**63
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("fair", {"tenants": [1]}),
    ("fair", {"tenants": {"*": 1}}),
    ("fair", {"tenants": [["*", 1]]}),
    ("fair", {"tenants": [["*", 0, -1, 0, 0]]}),
    ("fair", {"tenants": [["*", "a", "b", "c", "d"]]}),
    ("fair", {"tenants": [["*", 1, None, 9, 1]]}),
    ("fair", {"tenants": [["*", 1, None, 10, None]]}),
    ("fair", {"tenants": [["*", True, None]]}),
    ("fair", {"tenants": [["a b", 1, None]]}),
    ("fair", {"tenants": [["b", 1, None], ["a", 1, None]]}),
    ("fair", {"tenants": [["a", 1, None], ["a", 1, None]]}),
    ("fair", {"tenants": [[f"a{number}", 1, None] for number in range(1001)]}),
    ("timer", {"lease_ms": "x"}),
    ("timer", {"lease_ms": "30s"}),
    ("timer", {"lease_ms": None}),
    ("timer", {"lease_ms": 1.5}),
    ("timer", {"lease_ms": True}),
    ("timer", {"lease_ms": BIG}),
    ("timer", {"lease_ms": -(2**62)}),
    ("timer", {"lease_ms": 60_000, "max_lease_ms": 30_000}),
    ("timer", {"max_attempts": "x"}),
    ("timer", {"max_attempts": "10"}),
    ("timer", {"max_attempts": 0}),
    ("timer", {"max_snoozes": -1}),
    ("timer", {"max_request_rate_us": 0}),
    ("timer", {"max_request_rate_us": "s"}),
    ("timer", {"max_request_burst": 0}),
    ("timer", {"max_message_bytes": "1KiB"}),
    ("timer", {"ttl_ms": "x"}),
    ("timer", {"ttl_ms": 0}),
    ("timer", {"group_ttl_ms": "x"}),
    ("timer", {"dedup_window_ms": "x"}),
    ("timer", {"dedup_window_ms": BIG}),
    ("timer", {"delete_on_ack": "no way"}),
    ("timer", {"delete_on_ack": None}),
    ("timer", {"push_targets": "yes"}),
    ("timer", {"push_targets": None}),
    ("timer", {"ordering": 5}),
    ("timer", {"ordering": "key", "max_in_flight_per_key": "x"}),
    ("timer", {"ordering": "key", "max_in_flight_per_key": 5}),
    ("timer", {"retain_ms": "x", "delete_on_ack": False}),
    ("timer", {"retain_ms": 5000}),
    ("timer", {"backoff": 7}),
    ("timer", {"backoff": {"kind": 7}}),
    ("timer", {"backoff": {"kind": "exponential", "first_ms": "x", "cap_ms": "y"}}),
    ("timer", {"backoff": {"first_ms": 5000, "cap_ms": 1000}}),
    ("timer", {"backoff": {"factor_permille": 999}}),
    ("timer", {"backoff": {"factor_permille": "2000"}}),
    ("timer", {"backoff": {"jitter_percent": 101}}),
    ("compacted", {"history_ms": "x"}),
    ("compacted", {"key_ttl_ms": 0}),
    ("compacted", {"partition_delimiter": 5}),
    ("compacted", {"partition_delimiter": "none"}),
    ("compacted", {"partition_delimiter": "x" * 17}),
    ("compacted", {GROUP_LIMITS: [2, {"g": [1, 1, 1, None, None]}]}),
    ("priority", {"ageing_ms": "x"}),
    ("priority", {"ageing_ms": 0}),
    ("timer", {"precision_ms": 0}),
    ("timer", {"precision_ms": "auto"}),
    ("timer", {AUTO_CREATED: 1}),
    *[
        ("timer", {GROUP_LIMITS: limits})
        for limits in (
            5,
            [],
            {},
            ["x", {}],
            [0, {}],
            [BIG, {}],
            [5, {"g": 1}],
            [5, {"g": [1, 1, "x", "y", "z"]}],
            [5, {"g": [1, 1, 1, 0, 0]}],
            [5, {"g": [1, 1, 1, None, 1]}],
            [5, {"g": [1, 1, 1, 10, None]}],
            [5, {"g": [1, 1, None, None, None]}],
            [5, {"g": [5, 1, 1, None, None]}],
            [5, {"g": [1, 0, 1, None, None]}],
            [5, {"g": [1, 1, 1, None]}],
            [5, {"a b": [1, 1, 1, None, None]}],
            [5, {5: [1, 1, 1, None, None]}],
            [5, {f"g{number}": [1, 1, 1, None, None] for number in range(101)}],
        )
    ],
]


@pytest.mark.parametrize(("kind", "record"), WRONG, ids=str)
def test_a_record_that_no_topic_can_be_created_with_is_refused(kind: str, record: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as refused:
        checked_record(record, kind)
    assert refused.value.details["mistakes"]


WRITTEN: list[tuple[str, dict[str, Any]]] = [
    *[(kind, {}) for kind in CLASSES],
    (
        "timer",
        {"lease": "1m", "max_attempts": None, "max_snoozes": 0, "ttl": "1ms", "retention": "1h", "group_ttl": None},
    ),
    ("timer", {"delete_on_ack": False, "retain": "3660d", "retain_bytes": 1 << 50}),
    ("timer", {"ordering": "key"}),
    ("timer", {"max_in_flight_per_key": 3, "max_delay": "366000d", "max_message_bytes": "1MiB"}),
    ("timer", {"max_request_rate": "7/s", "max_request_burst": 3, "max_lease": "1h"}),
    ("timer", {"max_request_rate": "1/d"}),
    ("timer", {"push_targets": True}),
    ("fair", {"push_targets": True}),
    ("timer", {"backoff": {"kind": "linear", "first": 0, "factor": 1.234, "cap": "7d", "jitter_percent": 100}}),
    ("timer", {"backoff": {"kind": "none"}}),
    ("priority", {"ageing": "1s", "precision": "20ms"}),
    ("fair", {"tenants": {"a": {"weight": 3}, "b.*": {"max_in_flight": 1}, "*": {"rate": "3/h", "burst": 9}}}),
    ("compacted", {"ttl": "1h", "history": 0, "tombstone_retention": 0, "partition_delimiter": "/"}),
]


@pytest.mark.parametrize(("kind", "given"), WRITTEN, ids=str)
def test_record_of_created_topic_is_unchanged(kind: str, given: dict[str, Any]) -> None:
    record = parse_settings(given, kind).record()
    assert checked_record(record, kind) == record


def test_limits_of_groups_are_kept_and_dead_letters_left_out() -> None:
    record = parse_settings({}, "timer").record()
    for group, limit in (("g", {"rate": "3/s"}), ("h", {"max_in_flight": 3}), ("g", {})):
        record = with_limit(record, group, 7, parse_limit(limit))
    later = {DEAD_LETTER_TOPIC: "dead", DEAD_LETTER: [1, 1, "timer", "t"], "unknown": object()}
    assert checked_record({**record, AUTO_CREATED: True, **later}, "timer") == {**record, AUTO_CREATED: True}


def test_a_key_that_an_older_version_did_not_write_has_its_default() -> None:
    assert checked_record({}, "timer") == parse_settings({}, "timer").record()
