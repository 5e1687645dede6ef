"""Check a message before it goes into a batch: types, limits, times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from sandq.model.batch import headers_pack
from sandq.model.errors import InvalidRequest, InvalidTime, TooLarge
from sandq.model.headers import HeaderValue
from sandq.model.json_values import MISSING, content_of
from sandq.model.key_limits import NO_SETTINGS
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.message_targets import PushTarget, with_target
from sandq.model.names import check_tenant
from sandq.model.retries import NO_RULES, Backoff, MaxAttempts, MessageRules, parse_rules
from sandq.model.times import DAY_MS, TIME_MAX_MS, Duration, Instant, duration_ms, format_duration, instant_ms
from sandq.model.topic_limits import MAX_DELAY_MS, MAX_MESSAGE_BYTES
from sandq.protocol.requests import (
    DEBOUNCE,
    IGNORE,
    MAX_WAIT_MS,
    REJECT,
    REPLACE,
    REPLACE_PENDING,
    THROTTLE,
    THROTTLE_BOTH,
)

Value = bytes | bytearray | memoryview | str
Headers = Mapping[str, HeaderValue]
Push = PushTarget | Mapping[str, Any]

Traits = int
"""Bit set of the traits of a message. Only messages with equal traits share a batch.

Bits 0 and 1: kind of time (see `NOW`). Bits 2 to 4: 0 without a unique key, otherwise 1 + the `on_conflict` action. One
bit each: a ttl (`TTL_BIT`), an expected version of the key (`EXPECTED_BIT`), a rank (`RANK_BIT`), an instant so far
ahead that the broker may reject it (`FAR_BIT`), a unique key together with a different key (`PAIR_BIT`), rules of its
own (`RULES_BIT`), a URL (`PUSH_BIT`). The bits from `SPAN_SHIFT` on: the `max_wait` of a debounced message or the
`window` of a throttled message in ms, or 0.

So the broker checks messages one by one only if their traits require it. If it rejects a batch, only messages with the
same traits are affected.
"""

Rank = tuple[int | None, bytes | None]
"""Priority and tenant of a message. Each is None if the message does not set it."""

Ready = tuple[
    bytes | None,
    bytes | None,
    bytes | None,
    Traits,
    int,
    int | None,
    int | None,
    bytes | None,
    Rank | None,
    MessageRules | None,
]
"""A checked message: value (None deletes the key), key, packed headers, traits, time, requested partition, ttl (ms),
unique key, rank, rules.
"""
RANK_AT: Final = 8
"""Position of the rank in `Ready`."""

NOW, AT, DELAY = 0, 1, 2
"""Kinds of times: no time, an instant, a delay."""
TIME_BITS = 3
UNIQUE_SHIFT = 2
UNIQUE_BITS = 7 << UNIQUE_SHIFT
TTL_BIT = 32
EXPECTED_BIT = 64
RANK_BIT = 128
FAR_BIT = 256
PAIR_BIT = 512
RULES_BIT = 1024
PUSH_BIT = 2048
SPAN_SHIFT = 12

OnConflict = int | tuple[int, int]
"""The `on_conflict` of a PRODUCE: a number, or a number with the `max_wait` or the `window` in ms."""

_REPLACING = (1 + REPLACE, 1 + REPLACE_PENDING, 1 + DEBOUNCE, 1 + THROTTLE, 1 + THROTTLE_BOTH)
"""Values of `UNIQUE_BITS` of messages that may replace others, or whose order decides which of them is stored."""
_ON_CONFLICT = {
    "reject": REJECT,
    "replace": REPLACE,
    "ignore": IGNORE,
    "replace_pending": REPLACE_PENDING,
    "debounce": DEBOUNCE,
    "throttle": THROTTLE,
}
LEADING, BOTH = "leading", "both"
"""Values of `edge`."""


def replaces(traits: Traits) -> bool:
    """Return whether messages with these traits must keep the order of the calls, because of their unique keys."""
    return (traits & UNIQUE_BITS) >> UNIQUE_SHIFT in _REPLACING


def on_conflict_of(traits: Traits) -> OnConflict:
    """Return the `on_conflict` of a PRODUCE whose messages have these traits."""
    action = max((traits & UNIQUE_BITS) >> UNIQUE_SHIFT, 1) - 1
    span_ms = traits >> SPAN_SHIFT
    return (action, span_ms) if span_ms else action


def as_bytes(name: str, value: object) -> bytes:
    """Return a value or key as bytes: bytes-like objects unchanged, text encoded as UTF-8. `name`: name in errors."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name}: the text cannot be encoded as UTF-8: {error.reason}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidRequest(f"{name}: bytes or str is expected, not {type(value).__name__}")


def too_large(name: str, limit: str, maximum: int, size: int) -> TooLarge:
    """Return the error for a field that exceeds a named limit."""
    return TooLarge(
        f"{name} of {size} bytes: {maximum} is the limit ({limit})", limit=limit, maximum=maximum, size=size
    )


def as_unique_key(key: Value) -> bytes:
    """Return a unique key as bytes. Its size limit is the same on every node."""
    data = as_bytes("unique_key", key)
    if not data:
        raise InvalidRequest("unique_key: it must not be empty")
    if len(data) > FIXED.unique_key_bytes:
        raise too_large("unique_key", "unique_key_bytes", FIXED.unique_key_bytes, len(data))
    return data


class MessageValidation:
    """Checks messages against the limits that a node reports. A limit that the node does not report has a default."""

    __slots__ = ("batch_bytes", "delay_ms", "headers_bytes", "key_bytes", "message_bytes", "of_topic", "traced")

    def __init__(
        self,
        limits: Mapping[str, int],
        of_topic: Mapping[str, Any] = NO_SETTINGS,
        traced: Callable[[Headers | None], Headers | None] | None = None,
    ) -> None:
        """`of_topic`: the record of the topic's settings, which may have its own limits.

        `traced`: adds the headers of a trace to the headers of each message.
        """
        self.traced = traced
        self.of_topic = of_topic
        node_bytes = limits.get("message_bytes", DEFAULT.message_bytes)
        self.message_bytes = min(of_topic.get(MAX_MESSAGE_BYTES) or node_bytes, node_bytes)
        self.key_bytes = limits.get("key_bytes", DEFAULT.key_bytes)
        self.headers_bytes = limits.get("headers_bytes", DEFAULT.headers_bytes)
        self.batch_bytes = limits.get("batch_bytes", DEFAULT.batch_bytes)
        node_delay_ms = limits.get("delay_days", DEFAULT.delay_days) * DAY_MS
        self.delay_ms = of_topic.get(MAX_DELAY_MS) or node_delay_ms

    def message(
        self,
        value: Value | None,
        json: Any = MISSING,
        key: Value | None = None,
        headers: Headers | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        unique_key: Value | None = None,
        on_conflict: str = "reject",
        max_wait: Duration | None = None,
        window: Duration | None = None,
        edge: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        max_attempts: MaxAttempts | None = None,
        backoff: Backoff | None = None,
        cost: int | None = None,
        push: Push | None = None,
    ) -> Ready:
        """Check a message, given with a value or with `json`. May be called from any thread.

        The options are those of `SendOptions`.
        """
        if delay_ms is not None:
            delay = delay_of(delay, delay_ms)
        if json is not MISSING or value is MISSING:
            value, headers = content_of(value, json, headers)
        if push is not None:
            headers = with_target(headers, push)
        traits, at = self.time(deliver_at, delay) if deliver_at is not None or delay is not None else (NOW, 0)
        data = self.value(value) if value is not None else None
        key_bytes = self.key(key) if key is not None else None
        packed = self.headers(headers) if headers or self.traced is not None else None
        ttl_ms = unique = rank = rules = None
        if priority is not None or tenant is not None:
            rank = rank_of(priority, tenant)
            traits |= RANK_BIT
        if ttl is not None or unique_key is not None or on_conflict != "reject":
            more, ttl_ms, unique = self.extras(ttl, unique_key, on_conflict, key_bytes)
            traits |= more
        if max_wait is not None:
            traits |= max_wait_traits(max_wait, on_conflict, traits, at)
        if window is not None or edge is not None or on_conflict == "throttle":
            traits |= window_traits(window, edge, on_conflict, traits)
        if max_attempts is not None or backoff is not None or cost is not None:
            rules = rules_of(max_attempts, backoff, cost)
            traits |= 0 if rules is None else RULES_BIT
        if push is not None:
            traits |= PUSH_BIT
        return data, key_bytes, packed, traits, at, partition, ttl_ms, unique, rank, rules

    def time(self, deliver_at: Instant | None, delay: Duration | None) -> tuple[Traits, int]:
        """Return (traits of a time, instant in epoch ms, delay in ms, or 0).

        A delay beyond the limit raises InvalidTime. Only the broker can check an instant, by its own clock.
        """
        if delay is not None:
            if deliver_at is not None:
                raise InvalidRequest("deliver_at and delay: one of them, not both")
            delay_ms = duration_ms(delay)
            if delay_ms > self.delay_ms:
                raise self._too_far(delay_ms)
            return (DELAY, delay_ms) if delay_ms else (NOW, 0)
        if deliver_at is not None:
            at_ms = instant_ms(deliver_at)
            return (AT | FAR_BIT if at_ms > time.time() * 1000 + self.delay_ms else AT), at_ms
        return NOW, 0

    def _too_far(self, delay_ms: int) -> InvalidTime:
        delay = f"delay: {format_duration(delay_ms)} is more than"
        if MAX_DELAY_MS in self.of_topic:
            most = format_duration(self.delay_ms)
            text = f"{delay} {most}, the limit of the topic (max_delay); a bare number is seconds"
            return InvalidTime(text, limit="max_delay", maximum=self.delay_ms)
        days = self.delay_ms // DAY_MS
        text = f"{delay} {days} days, the limit of the node (limits.delay_days); a bare number is seconds"
        return InvalidTime(text, limit="delay_days", maximum=days)

    def value(self, value: Value) -> bytes:
        data = value if type(value) is bytes else as_bytes("value", value)
        if len(data) > self.message_bytes:
            limit = MAX_MESSAGE_BYTES if self.message_bytes == self.of_topic.get(MAX_MESSAGE_BYTES) else "message_bytes"
            raise too_large("value", limit, self.message_bytes, len(data))
        return data

    def key(self, key: Value | None) -> bytes | None:
        if key is None:
            return None
        data = as_bytes("key", key)
        if len(data) > self.key_bytes:
            raise too_large("key", "key_bytes", self.key_bytes, len(data))
        return data

    def headers(self, headers: Headers | None) -> bytes | None:
        tied = headers if self.traced is None else self.traced(headers)
        if not tied:
            return None
        if not isinstance(tied, Mapping):
            raise InvalidRequest(f"headers: a mapping is expected, not {type(tied).__name__}")
        try:
            return headers_pack(tied, max_bytes=self.headers_bytes)
        except TooLarge:
            if tied is headers:
                raise
            # If the message fits only without the headers of the trace, send it without them.
            return headers_pack(headers, max_bytes=self.headers_bytes)

    def extras(
        self, ttl: Duration | None, unique_key: Value | None, on_conflict: str, key: bytes | None
    ) -> tuple[int, int | None, bytes | None]:
        """Return (traits, ttl in ms, unique key) of a message that may have a ttl or a unique key. `key`: the message's
        key."""
        conflict = _ON_CONFLICT.get(on_conflict) if isinstance(on_conflict, str) else None
        if conflict is None:
            *names, last = [f'"{name}"' for name in _ON_CONFLICT]
            raise InvalidRequest(f"on_conflict: {', '.join(names)} or {last} is expected, not {on_conflict!r}")
        traits, ttl_ms, unique = 0, None, None
        if ttl is not None:
            ttl_ms = duration_ms(ttl)
            traits |= TTL_BIT
            if not ttl_ms:
                raise InvalidRequest("ttl: it must be greater than 0")
        if unique_key is not None:
            unique = as_unique_key(unique_key)
            traits |= (1 + conflict) << UNIQUE_SHIFT
            if key is not None and key != unique:
                traits |= PAIR_BIT
        elif conflict != REJECT:
            raise InvalidRequest("on_conflict: it needs a unique_key")
        return traits, ttl_ms, unique


def max_wait_traits(max_wait: Duration, on_conflict: str, traits: Traits, time: int) -> Traits:
    """Check the `max_wait` of a message, and return its bits of the traits.

    `traits` and `time` are those of the message, as `MessageValidation.time` returns them.
    """
    if on_conflict != "debounce":
        raise InvalidRequest('max_wait: it needs on_conflict="debounce"')
    max_wait_ms = duration_ms(max_wait)
    if not max_wait_ms:
        raise InvalidRequest("max_wait: it must be greater than 0")
    if max_wait_ms > MAX_WAIT_MS:
        most = f"{MAX_WAIT_MS // DAY_MS} days"
        raise InvalidTime(f"max_wait: {format_duration(max_wait_ms)} is more than {most}; a bare number is seconds")
    if traits & TIME_BITS == DELAY and max_wait_ms < time:
        delay = format_duration(time)
        raise InvalidRequest(f"max_wait: {format_duration(max_wait_ms)} is less than the delay of {delay}")
    return max_wait_ms << SPAN_SHIFT


def window_traits(window: Duration | None, edge: str | None, on_conflict: str, traits: Traits) -> Traits:
    """Check the `window` and the `edge` of a message, and return their bits of the traits. `traits`: as they are
    without these bits."""
    if on_conflict != "throttle":
        name = "window" if window is not None else "edge"
        raise InvalidRequest(f'{name}: it needs on_conflict="throttle"')
    if window is None:
        raise InvalidRequest('window: on_conflict="throttle" needs one, for example "1m"')
    window_ms, most_ms = duration_ms(window), FIXED.throttle_window_ms
    if not window_ms:
        raise InvalidRequest("window: it must be greater than 0")
    if window_ms > most_ms:
        most = f"{most_ms // DAY_MS} days"
        raise InvalidTime(f"window: {format_duration(window_ms)} is more than {most}; a bare number is seconds")
    if edge in (None, LEADING):
        return window_ms << SPAN_SHIFT
    if edge != BOTH:
        instead = 'for the newest message alone, use on_conflict="debounce" with max_wait and delay of one window'
        raise InvalidRequest(f'edge: "{LEADING}" or "{BOTH}" is expected, not {edge!r:.60}; {instead}')
    if traits & TIME_BITS != NOW:
        raise InvalidRequest(f'edge: "{BOTH}" itself determines the time of a message, so give no deliver_at or delay')
    return window_ms << SPAN_SHIFT | (1 + THROTTLE_BOTH) << UNIQUE_SHIFT  # includes the bits of THROTTLE


def rules_of(max_attempts: object, backoff: object, cost: object) -> MessageRules | None:
    """Check the rules of a message. Return None if it has none: a cost of 1 is no rule."""
    rules = parse_rules(max_attempts, backoff, cost)
    return None if rules == NO_RULES else rules


def rank_of(priority: int | None, tenant: str | None) -> Rank:
    """Check a priority and a tenant; at least one of them is given."""
    if priority is not None:
        if type(priority) is not int:
            raise InvalidRequest(f"priority: a whole number is expected, not {priority!r:.60}")
        if not FIXED.priority_least <= priority <= FIXED.priority_most:
            raise InvalidRequest(f"priority: it is not within {FIXED.priority_least} to {FIXED.priority_most}")
    return priority, None if tenant is None else check_tenant(tenant).encode()


def delay_of(delay: Duration | None, delay_ms: int) -> Duration:
    """Return the delay of a message that gives `delay_ms` (whole milliseconds). Raises InvalidRequest if `delay` is
    given as well."""
    if delay is not None:
        raise InvalidRequest("delay and delay_ms: one of them, not both")
    if type(delay_ms) is not int or not 0 <= delay_ms <= TIME_MAX_MS:
        expected = f"a whole number of milliseconds from 0 to {TIME_MAX_MS}"
        raise InvalidTime(f"delay_ms: {expected} is expected, not {delay_ms!r:.60}")
    return timedelta(milliseconds=delay_ms)
