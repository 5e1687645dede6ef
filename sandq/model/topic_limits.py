"""Limits of a single topic, which apply in addition to the limits of the nodes. They are settings of the topic.

The record of settings has a limit only if it is set, so that versions without these limits never read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.message_targets import PUSH_TARGETS, TargetRules

MAX_MESSAGE_BYTES: Final = "max_message_bytes"
MAX_DELAY_MS: Final = "max_delay_ms"
MAX_LEASE_MS: Final = "max_lease_ms"
LIMITS: Final = (MAX_MESSAGE_BYTES, MAX_DELAY_MS, MAX_LEASE_MS)
"""Keys of the limits in the record of a topic's settings."""
_OWN: Final = frozenset((*LIMITS, PUSH_TARGETS))


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
    targets: TargetRules | None = None
    """URLs that messages of the topic may have; None: they have none."""


def limits_of(topic: str, settings: Mapping[str, Any], targets: TargetRules | None) -> TopicLimits | None:
    """Return the limits in the record of a topic's settings; None if it has none. `targets`: URLs that its messages may
    have; None: they have none."""
    if settings.keys().isdisjoint(_OWN):
        return None
    message_bytes, delay_ms, lease_ms = [settings.get(name) for name in LIMITS]
    return TopicLimits(topic, message_bytes, delay_ms, lease_ms, targets)
