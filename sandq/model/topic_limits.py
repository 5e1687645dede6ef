"""Limits that a topic may have of its own, beside those of the nodes. They are settings, which stand in a record only
where they are set: a version that knows none meets none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_MESSAGE_BYTES: Final = "max_message_bytes"
MAX_DELAY_MS: Final = "max_delay_ms"
MAX_LEASE_MS: Final = "max_lease_ms"
LIMITS: Final = (MAX_MESSAGE_BYTES, MAX_DELAY_MS, MAX_LEASE_MS)
"""In the record of a topic's settings."""


MAX_REQUEST_RATE_US: Final = "max_request_rate_us"
"""The time between two requests of a client, in microseconds ..."""
MAX_REQUEST_BURST: Final = "max_request_burst"
"""... and how many may come at once after a pause."""
REQUEST_RATES: Final = (MAX_REQUEST_RATE_US, MAX_REQUEST_BURST)


class TopicLimits(NamedTuple):
    """Those of one topic; None: as the node has it."""

    topic: str
    message_bytes: int | None = None
    """Of a message's value."""
    delay_ms: int | None = None
    """How far ahead a message may be: instead of the node's."""
    lease_ms: int | None = None


def has_limits(settings: Mapping[str, Any]) -> bool:
    """Whether a record of settings has any of them."""
    return MAX_MESSAGE_BYTES in settings or MAX_DELAY_MS in settings or MAX_LEASE_MS in settings


def limits_of(topic: str, settings: Mapping[str, Any]) -> TopicLimits | None:
    """The limits in the record of a topic's settings; None: it has none."""
    return TopicLimits(topic, *[settings.get(name) for name in LIMITS]) if has_limits(settings) else None
