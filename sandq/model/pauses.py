"""The ends of pauses."""

from __future__ import annotations

from typing import Final

from sandq.model.errors import InvalidRequest, InvalidTime
from sandq.model.limits import FIXED
from sandq.model.times import format_duration, format_instant

TENANT: Final = "tenant"
KEY: Final = "key"
GROUP: Final = "group"
PARTS: Final = (TENANT, KEY, GROUP)
"""Parts of a group that a consumer may pause: those to which its message belongs. PERSISTED."""
STORED_KEY_BYTES: Final = 1024
"""Maximum length of a paused key that is stored with its pause. A longer key is known only by its ordering hash."""
PAUSES_MAX: Final = 1000
"""Maximum number of paused tenants and keys in one list."""


def consumer_pause_ms(for_ms: int) -> int:
    """Return the duration of a pause by a consumer, in ms. Raise InvalidTime if it is 0 or too long."""
    if not 1 <= for_ms <= FIXED.consumer_pause_most_ms:
        raise InvalidTime(
            f"a pause of {format_duration(for_ms)} by a consumer: more than 0s and at most "
            f"{format_duration(FIXED.consumer_pause_most_ms)} are allowed (consumer_pause_most_ms, which is fixed); an "
            "operator can pause for longer",
            limit="consumer_pause_most_ms",
            maximum=FIXED.consumer_pause_most_ms,
        )
    return for_ms


def pause_end_ms(until_ms: int | None, for_ms: int | None, now_ms: int) -> int | None:
    """Return the end of a pause in ms. None: it stays until it is resumed.

    Raise InvalidRequest if both arguments are given, and InvalidTime if the end has passed or is too far ahead."""
    if until_ms is not None and for_ms is not None:
        raise InvalidRequest("the end of a pause is given twice: give an instant (until) or a duration (for), not both")
    if until_ms is None and for_ms is None:
        return None
    end_ms = until_ms if for_ms is None else now_ms + for_ms
    assert end_ms is not None
    if end_ms <= now_ms:
        given = "a pause for 0s" if until_ms is None else f"a pause until {format_instant(end_ms)}"
        raise InvalidTime(
            f"{given} would have ended already, as it is {format_instant(now_ms)}: give a later end, or resume instead"
        )
    if end_ms - now_ms > FIXED.pause_most_ms:
        raise InvalidTime(
            f"a pause of {format_duration((end_ms - now_ms) // 1000 * 1000)}: at most "
            f"{format_duration(FIXED.pause_most_ms)} are allowed (pause_most_ms, which is fixed); pause without an end "
            "to stop until it is resumed",
            limit="pause_most_ms",
            maximum=FIXED.pause_most_ms,
        )
    return end_ms
