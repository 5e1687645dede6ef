"""Parse cron expressions, and find the wall-clock times that they match.

    30 2 * * *          minute, hour, day of month, month, day of week
    */10 * * * * *      six fields: the first one is the second
    @daily              an alias

cronsim parses the fields and searches the calendar with naive datetimes, without a time zone. `wall_clock` handles
clocks that are set forward or back, because cronsim does so only for five fields. With six fields, cronsim omits times
that the clock skips, and returns a time twice if the clock shows it twice.
"""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from sandq.model.errors import InvalidRequest

EXPRESSION_CHARS_MAX: Final = 256
EXPRESSIONS_KEPT: Final = 4096

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# Allowed values of each field, in the order of six fields.
_FIELDS: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L for the last day, LW for the last day of Monday to Friday",
    "month": "1 to 12 or JAN to DEC",
    "day of week": "0 to 7 or SUN to SAT (0 and 7 are Sunday), 5L for the last Friday, FRI#2 for the second",
}
_ENDS: Final = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day of month": (1, 31),
    "month": (1, 12),
    "day of week": (0, 7),
}
_ORDER: Final = (
    "five fields are expected (minute, hour, day of month, month, day of week), or six with the second first"
)
# Arbitrary start time of the search that checks an expression.
_ANY_WALL: Final = datetime(2000, 1, 1)
_LAST_YEAR: Final = 9998


class CronExpression:
    """The wall-clock times that an expression matches. Created by `parse`; immutable.

    is_fixed: True if neither the hour nor the minute field begins with a star: "30 2 * * *", not "30 * * * *".
    """

    __slots__ = ("_backward", "_forward", "is_fixed")

    def __init__(self, fields: list[str]) -> None:
        """Parse six fields. Raise CronSimError if one of them is wrong."""
        text = " ".join(fields)
        self._forward = CronSim(text, _ANY_WALL)
        self._backward = CronSim(text, _ANY_WALL, reverse=True)
        self.is_fixed = not fields[1].startswith("*") and not fields[2].startswith("*")

    def after(self, wall: datetime) -> datetime | None:
        """Return the first matching time after `wall`, both without a zone and in whole seconds.

        None if the next matching time is more than 50 years away, or after the year 9998."""
        search = copy.copy(self._forward)
        search.dt = wall
        try:
            found = next(search)
        except (StopIteration, OverflowError):
            return None
        return found if found.year <= _LAST_YEAR else None

    def at_or_before(self, wall: datetime) -> datetime | None:
        """Return the last matching time at or before `wall`, None if there is none within 50 years."""
        search = copy.copy(self._backward)
        search.dt = wall + timedelta(seconds=1)
        return next(search, None)


@lru_cache(maxsize=EXPRESSIONS_KEPT)
def parse(text: str) -> CronExpression:
    """Parse an expression.

    Raise InvalidRequest if a field is wrong, or if the expression never matches. If a field is wrong, the error lists
    its allowed values."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise InvalidRequest(f"cron: {len(text)} characters are given, at most {EXPRESSION_CHARS_MAX} are allowed")
    fields = _fields(text)
    for name, field in zip(_FIELDS, fields, strict=True):
        _check_field(text, name, field)
    try:
        expression = CronExpression([_plain(name, field) for name, field in zip(_FIELDS, fields, strict=True)])
    except CronSimError:
        # Each field is valid by itself, so none of the months has such a day.
        raise InvalidRequest(_never(text)) from None
    if expression.after(_ANY_WALL) is None:
        raise InvalidRequest(_never(text))
    return expression


def _fields(text: str) -> list[str]:
    """Return the six fields of an expression; the second is 0 if it has five."""
    given = text.split()
    if given and given[0].lower() == "@every":
        interval = " ".join(given[1:]) or "5m"
        raise InvalidRequest(f'cron: "{text}" is an interval: give it as every "{interval}", in place of cron')
    if len(given) == 1 and given[0].startswith("@"):
        alias = given[0].lower()
        if alias == "@reboot":
            raise InvalidRequest(
                "cron: @reboot has no meaning here, for a cluster is not started again as a whole; tell times, or use "
                "an interval"
            )
        if alias not in ALIASES:
            raise InvalidRequest(f'cron: "{given[0]}" is not known; the aliases are {", ".join(ALIASES)}')
        given = ALIASES[alias].split()
    if len(given) not in (5, 6):
        count = f"{len(given)} field" + ("" if len(given) == 1 else "s")
        raise InvalidRequest(f'cron: "{text}" has {count}; {_ORDER}')
    return given if len(given) == 6 else ["0", *given]


def _check_field(text: str, name: str, field: str) -> None:
    """Raise InvalidRequest if a part of a field is invalid. The error names the part."""
    for part in field.split(","):
        if _is_readable(name, part):
            continue
        raise InvalidRequest(f'cron: "{text}": {name}: "{part}" is not understood; {_advice(name, part)}')


def check_steps(text: str) -> None:
    """Raise InvalidRequest if a step exceeds the range of its field: */90 in the minutes would mean every hour.

    Call it for expressions that users enter. `parse` accepts such steps, as cron does.
    """
    for name, field in zip(_FIELDS, _fields(text), strict=True):
        least, greatest = _ENDS[name]
        for part in field.split(","):
            span, _, step = part.partition("/")
            if step.isdecimal() and int(step) > greatest - least and (span == "*" or "-" in span):
                raise InvalidRequest(
                    f'cron: "{text}": {name}: "{part}": the step is longer than the range of the field '
                    f"({least} to {greatest}): name the values, or use every in place of cron"
                )


def _plain(name: str, field: str) -> str:
    """Return a field in which each range of a single number is replaced by that number, without its step.

    cronsim reads 5-5/3 as 5/3, which continues to the end of the range."""
    parts = field.split(",")
    for position, part in enumerate(parts):
        span, step, _ = part.partition("/")
        low, dash, high = span.partition("-")
        # A range is valid in both directions only if both ends are the same number, even if written differently.
        if step and dash and _is_readable(name, f"{high}-{low}"):
            parts[position] = low
    return ",".join(parts)


def _is_readable(name: str, part: str) -> bool:
    if not part:
        return False
    fields = [part if field == name else "*" for field in _FIELDS]
    try:
        CronSim(" ".join(fields), _ANY_WALL)
    except CronSimError:
        return False
    return True


def _advice(name: str, part: str) -> str:
    if part == "?":
        return "write * for any"
    if name == "day of month" and part[:-1].isdecimal() and part[-1] in "wW":
        return "only LW is possible; name several days, as 1-3, and leave out the others when a message comes"
    low, dash, high = part.partition("-")
    if dash and "L" not in low.upper() and _is_readable(name, low) and _is_readable(name, high):
        least, greatest = _ENDS[name]
        return f"a range goes up: write {low}-{greatest},{least}-{high}"
    return f"{_FIELDS[name]} is expected, or ranges 1-5, steps */2 and 1-9/2, and lists 1,3 of these"


def _never(text: str) -> str:
    return f'cron: "{text}" never happens; name a day that these months have'
