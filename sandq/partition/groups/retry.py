"""When a message that was not acked comes back: integer arithmetic only, the same on every replica."""

from __future__ import annotations

from typing import Any

_MASK = (1 << 64) - 1


def delay_ms(backoff: dict[str, Any], attempt: int, base: bytes, group_id: int) -> int:
    """Delay before attempt + 1.

    `backoff` is the record of the settings: kind, first_ms, factor_permille, cap_ms, jitter_percent.
    The jitter is spread evenly over +- jitter_percent by a hash of offset, group and attempt.
    """
    kind = backoff["kind"]
    if kind == "none":
        return 0
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
    spread = delay * backoff["jitter_percent"] // 100
    if spread:
        delay += _mix(int.from_bytes(base, "big"), group_id, attempt) % (2 * spread + 1) - spread
    return max(delay, 0)


def _mix(offset: int, group_id: int, attempt: int) -> int:
    """splitmix64's finalizer over the inputs folded to 64 bits (Steele, Lea, Flood 2014)."""
    x = (offset ^ (offset >> 64) ^ (group_id << 32) ^ attempt) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
