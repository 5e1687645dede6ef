"""The ends of pauses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sandq.model.errors import InvalidRequest, InvalidTime, SandqError, TimedOut
from sandq.model.limits import FIXED
from sandq.model.offsets import U48_MAX
from sandq.model.times import format_duration, format_instant

TENANT: Final = "tenant"
KEY: Final = "key"
GROUP: Final = "group"
LIMIT: Final = "limit"
PARTS: Final = (TENANT, KEY, GROUP, LIMIT)
"""Kinds of pauses by a consumer: of a part of its group to which its message belongs, or of the named limit of the
group. PERSISTED."""
FOREVER: Final = U48_MAX
"""End of a pause that stays until it is resumed."""
BY_CHARS: Final = 600
"""Maximum length of the text that says who has paused a named limit: the longest has two names."""
ENDED_MS: Final = 60_000
"""Maximum time for which a pause that has ended may have a row, in ms."""
STORED_KEY_BYTES: Final = 1024
"""Maximum length of a paused key that is stored with its pause. A longer key is known only by its ordering hash."""
PAUSES_MAX: Final = 1000
"""Maximum number of paused tenants and keys in one list."""
STEP_MS: Final = 1000
"""Ends of pauses by consumers are rounded to a multiple of this, in ms. Shorter pauses use a shorter step."""
NAMED: Final = 8
"""Maximum number of partitions that an error lists by number."""
REFUSED: Final = "refused"
"""Detail of the error of an incomplete pause: the partitions that refuse the pause."""


def consumer_pause_end_ms(for_ms: int, now_ms: int) -> int:
    """Return the end of a pause by a consumer, in ms, rounded to a step of `STEP_MS` or of a tenth of the pause.

    The end is rounded up, unless the pause would be too long. Many consumers that pause at the same moment get the same
    end, so that most of their pauses need no entry in the logs of the other partitions.

    Raise InvalidTime if the pause is 0 or too long."""
    if not 1 <= for_ms <= FIXED.consumer_pause_most_ms:
        raise InvalidTime(
            f"a pause of {format_duration(for_ms)} by a consumer: more than 0s and at most "
            f"{format_duration(FIXED.consumer_pause_most_ms)} are allowed (consumer_pause_most_ms, which is fixed); an "
            "operator can pause for longer",
            limit="consumer_pause_most_ms",
            maximum=FIXED.consumer_pause_most_ms,
        )
    step_ms = min(STEP_MS, max(for_ms // 10, 1))
    end_ms = now_ms + for_ms
    missing_ms = -end_ms % step_ms
    return end_ms + missing_ms if for_ms + missing_ms <= FIXED.consumer_pause_most_ms else end_ms - end_ms % step_ms


def set_back_end(until_ms: int, old_ms: int, new_ms: int) -> int:
    """Return the end of a pause after a clock reset from the floor `old_ms` to `new_ms`.

    The wrong clock has most likely set the pauses that end after the old floor, or shortly before it: the floor may be
    ahead of the time of the last entry, and pauses that have ended are removed a little later."""
    if until_ms == FOREVER or until_ms <= max(old_ms - ENDED_MS, new_ms):
        return until_ms
    return max(until_ms - old_ms + new_ms, new_ms)


def pause_text(until_ms: int) -> str:
    """Return "paused until ...", for a pause with this end."""
    return f"paused until {'it is resumed' if until_ms == FOREVER else format_instant(until_ms)}"


def incomplete_pause(
    total: int, *, refused: Collection[int], silent: Collection[int] = (), reason: str = ""
) -> SandqError:
    """Return the error for a pause that does not hold in all `total` partitions.

    `refused`: the partitions that refuse the pause, for `reason`. `silent`: the partitions whose leaders did not
    answer. The pause holds in all others. The error is InvalidRequest if partitions refuse the pause, else TimedOut,
    which is retriable."""
    held = total - len(refused) - len(silent)
    what = []
    if silent:
        what.append(f"the leaders of {_named(silent)} did not answer")
    if refused:
        what.append(f"{_named(refused)} refused it, because {reason}")
    text = f"the pause holds in {held} of {total} partitions: {'; '.join(what)}; repeating the call is safe"
    details: dict[str, Any] = {"held": held, "partitions": total}
    if silent:
        details["silent"] = sorted(silent)
    if not refused:
        return TimedOut(text, **details)
    limit = {"limit": "paused_parts", "maximum": FIXED.paused_parts}
    return InvalidRequest(text, **limit, **details, **{REFUSED: sorted(refused), "reason": reason})


def _named(partitions: Collection[int]) -> str:
    """Return a text with the first `NAMED` partitions, and the number of the others."""
    word = "partition" if len(partitions) == 1 else "partitions"
    more = f" and {len(partitions) - NAMED} more" if len(partitions) > NAMED else ""
    return f"{word} {', '.join(map(str, sorted(partitions)[:NAMED]))}{more}"


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
