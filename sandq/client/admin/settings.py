"""The settings of topics and groups as keyword arguments, for type checkers.

`sandq.model.settings` defines their meaning and ranges, and the broker checks them with it. A test compares both
modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypedDict

from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.retries import Backoff
from sandq.model.times import Duration, duration_ms, format_duration

OrNone = Literal["none"] | None


class Tenant(TypedDict, total=False):
    """The settings of the tenants that match a pattern."""

    weight: int
    max_in_flight: int | None
    rate: str | float | None
    burst: int | None


class TopicSettings(TypedDict, total=False):
    """Settings of topics of all kinds. The broker checks whether a setting applies to the topic's kind."""

    lease: Duration
    max_attempts: int | OrNone
    max_snoozes: int | OrNone
    backoff: Backoff
    group_ttl: Duration | None
    max_message_bytes: int | str | None
    max_delay: Duration | None
    max_lease: Duration | None
    max_request_rate: str | float | None
    max_request_burst: int | OrNone
    ttl: Duration | None
    on_expiry: Literal["dead", "drop"]
    delete_on_ack: bool
    retention: Duration
    retain: Duration | None
    retain_bytes: int | str | None
    dedup_window: Duration
    dead_letter_topic: str | None
    push_targets: bool
    dead_retention: Duration | None
    max_dead_letters: int | OrNone
    precision: Duration | None
    ordering: Literal["none", "key"]
    max_in_flight_per_key: int | OrNone
    history: Duration
    tombstone_retention: Duration
    partition_delimiter: str | None
    ageing: Duration | None
    tenants: Mapping[str, Tenant]


class GroupSettings(TypedDict, total=False):
    """Settings of a group that override the topic's settings."""

    max_attempts: int | OrNone
    max_snoozes: int | OrNone
    backoff: Backoff
    on_expiry: Literal["dead", "drop"]
    max_in_flight_per_key: int


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in a form that msgpack can encode: a timedelta becomes text. The broker checks their values."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        _check_text("the name of a setting", name)
        if isinstance(value, str):
            _check_text(name, value)
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise InvalidSetting(f"{name}: {str(value)[:40]} is too large")
        if isinstance(value, timedelta):
            plain[name] = format_duration(duration_ms(value))
        elif isinstance(value, Mapping):
            plain[name] = plain_settings(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
        else:
            raise InvalidRequest(f"{name}: {type(value).__name__} is no value of a setting")
    return plain


def _check_text(name: str, text: object) -> None:
    """Raise InvalidSetting unless it is text that can be encoded as UTF-8."""
    try:
        if isinstance(text, str):
            text.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidSetting(f"{name}: {text!a:.80} is no text")
