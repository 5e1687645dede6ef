"""Computes when a message that was not acked is retried. Uses integers only, so that all replicas get the same
result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.retries import UNLIMITED, RetryRules, backoff_record
from sandq.partition.groups.group import Group

_MASK = (1 << 64) - 1


WAITS: Final = 256
"""Maximum number of different waits with jitter. So messages that fail together need at most this many rows."""


class Wait(NamedTuple):
    """Time until the next attempt: `delay_ms`, plus or minus up to `spread_ms`."""

    delay_ms: int
    spread_ms: int

    def of(self, offset: int, group_id: int, attempt: int) -> int:
        """Return the wait of one message, in ms. The jitter is a hash of its offset, the group and the attempt."""
        spread = self.spread_ms
        if not spread:
            return self.delay_ms
        steps = min(2 * spread, WAITS - 1)
        step = _mix(offset, group_id, attempt) % (steps + 1)
        return max(self.delay_ms - spread + 2 * spread * step // steps, 0)


def max_attempts_of(rules: RetryRules | None, group: Group, topic: Mapping[str, Any]) -> int | None:
    """Return the number of attempts after which a message dies. None if there is no limit. `rules`: the message's own
    rules; `topic`: the record of the topic's settings."""
    if rules is not None and rules.max_attempts is not None:
        return None if rules.max_attempts == UNLIMITED else rules.max_attempts
    most: int | None = group.setting("max_attempts", topic)
    return most


def backoff_of(rules: RetryRules | None, group: Group, topic: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the back-off of a message. `rules`, `topic`: as in `max_attempts_of`."""
    if rules is not None and rules.backoff is not None:
        return backoff_record(rules.backoff)
    backoff: Mapping[str, Any] = group.setting("backoff", topic)
    return backoff


def wait_of(backoff: Mapping[str, Any], attempt: int) -> Wait:
    """Return the wait between `attempt` and the next attempt.

    `backoff` is the record of the settings: kind, first_ms, factor_permille, cap_ms, jitter_percent.
    """
    kind = backoff["kind"]
    if kind == "none":
        return Wait(0, 0)
    first_ms, cap_ms = backoff["first_ms"], backoff["cap_ms"]
    delay: int = first_ms
    if kind == "linear":
        delay = first_ms * attempt
    elif kind == "exponential":
        factor = backoff["factor_permille"]
        for _ in range(attempt - 1):
            delay = delay * factor // 1000
            if delay >= cap_ms:
                break
    delay = min(delay, cap_ms)
    return Wait(delay, delay * backoff["jitter_percent"] // 100)


def _mix(offset: int, group_id: int, attempt: int) -> int:
    """Return a 64-bit hash of the inputs: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (offset ^ (offset >> 64) ^ (group_id << 32) ^ attempt) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
