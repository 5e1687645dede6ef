"""The settings of topics and groups as keyword arguments, for type checkers. What they mean, and their ranges:
`sandq.model.settings`, by which the broker checks them; a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from sandq.model.times import Duration

OrNone = Literal["none"] | None


class Backoff(TypedDict, total=False):
    """How long a message waits before its next attempt."""

    kind: Literal["exponential", "fixed", "linear", "none"]
    first: Duration
    factor: float
    cap: Duration
    jitter_percent: int


class Tenant(TypedDict, total=False):
    """What holds for the tenants that a pattern names."""

    weight: int
    max_in_flight: int | None
    rate: str | float | None
    burst: int | None


class TopicSettings(TypedDict, total=False):
    """Those of topics of all kinds; which kind has which, the broker says."""

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
    delete_on_ack: bool
    retention: Duration
    retain: Duration | None
    retain_bytes: int | str | None
    dedup_window: Duration
    dead_letter_topic: str | None
    ordering: Literal["none", "key"]
    max_in_flight_per_key: int | OrNone
    history: Duration
    tombstone_retention: Duration
    partition_delimiter: str | None
    ageing: Duration | None
    tenants: Mapping[str, Tenant]


class GroupSettings(TypedDict, total=False):
    """What a group may have otherwise than its topic."""

    max_attempts: int | OrNone
    max_snoozes: int | OrNone
    backoff: Backoff
    max_in_flight_per_key: int
