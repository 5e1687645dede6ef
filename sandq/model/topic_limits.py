"""Limits of a single topic, which apply in addition to the limits of the nodes. They are settings of the topic.

The record of settings has a limit only if it is set, so that versions without these limits never read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_MESSAGE_BYTES: Final = "max_message_bytes"
MAX_DELAY_MS: Final = "max_delay_ms"
MAX_LEASE_MS: Final = "max_lease_ms"
LIMITS: Final = (MAX_MESSAGE_BYTES, MAX_DELAY_MS, MAX_LEASE_MS)
"""Keys of the limits in the record of a topic's settings."""


MAX_REQUEST_RATE_US: Final = "max_request_rate_us"
"""Minimum time between two requests of a client, on average, in microseconds."""
MAX_REQUEST_BURST: Final = "max_request_burst"
"""Number of requests that a client may send at once after a pause."""
REQUEST_RATES: Final = (MAX_REQUEST_RATE_US, MAX_REQUEST_BURST)
PRECISION_MS: Final = "precision_ms"
"""Maximum time in ms for which a due message may wait for others. If it is not set, the node chooses this time."""
AUTO: Final = "auto"
"""Text of a `precision` that the node chooses."""


class TopicLimits(NamedTuple):
    """Limits of one topic. None: the limit of the node applies."""

    topic: str
    message_bytes: int | None = None
    """Maximum size of a message's value, in bytes."""
    delay_ms: int | None = None
    """Maximum time from now to the delivery of a message, in ms. Replaces the limit of the node."""
    lease_ms: int | None = None


def has_limits(settings: Mapping[str, Any]) -> bool:
    """Return whether a record of settings has any of these limits."""
    return MAX_MESSAGE_BYTES in settings or MAX_DELAY_MS in settings or MAX_LEASE_MS in settings


def limits_of(topic: str, settings: Mapping[str, Any]) -> TopicLimits | None:
    """Return the limits in the record of a topic's settings; None if it has none."""
    return TopicLimits(topic, *[settings.get(name) for name in LIMITS]) if has_limits(settings) else None
