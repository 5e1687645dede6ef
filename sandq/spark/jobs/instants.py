"""Converts columns to times and whole numbers with Spark expressions.

Times have the formats of `sandq/model/times.py`: RFC 3339 or epoch milliseconds. They are rounded up, so that no
message is early.

A timestamp, a date or a text may have no zone: then it is a local time in the zone that is given. A local time that
exists twice, because clocks were put back, stands for the first of the two. A local time that does not exist, because
clocks were put forward, is moved forward by the length of the gap.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from sandq.model.errors import InvalidSetting
from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS
from sandq.spark.jobs.origins import Field

_TEXT: Final = ("string", "varchar(", "char(")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DIGITS: Final = "^[0-9]{1,18}$"
_SIGNED: Final = "^-?[0-9]{1,18}$"
_CLOCK: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,30})?"
_ZONE: Final = "(Z|[+-][0-9]{2}:[0-9]{2})"
_ZONED: Final = f"^{_CLOCK}{_ZONE}$"
_LOCAL: Final = f"^{_CLOCK}$"
_BELOW_MICROS: Final = "\\.[0-9]{6}[0-9]*[1-9]"
"""Nonzero digits after the microseconds, which Spark's timestamps cannot store."""

NOT_AN_INSTANT: Final = 'not a time: RFC 3339 like "2030-01-31T08:00:00Z", or epoch milliseconds, is expected'
SECONDS: Final = "it looks like seconds; epoch milliseconds are expected"
NO_ZONE: Final = "it has no time zone, and no default time zone is given"
OUTSIDE: Final = "it is before March 1973 or after the year 10889"


def instant(field: Field, time_zone: str | None) -> Column:
    """Return a column as epoch milliseconds (bigint); null if the value is null or wrong.

    Raises InvalidSetting if the column's type cannot be a time.
    """
    kind = field.kind
    if kind in _WHOLE:
        return field.value.cast("bigint")
    if kind == "timestamp":
        return _ms(F.unix_micros(field.value))
    if kind in ("timestamp_ntz", "date"):
        if time_zone is None:
            raise InvalidSetting(f"deliver_at: a column of type {kind} has no time zone; give one (time_zone)")
        midnight = " 00:00:00Z" if kind == "date" else "Z"
        return _local_ms(F.concat(field.value.cast("string"), F.lit(midnight)), time_zone)
    if not kind.startswith(_TEXT):
        raise InvalidSetting(f"deliver_at: a column of type {kind} is no time; a timestamp, text or bigint is expected")
    text = F.trim(field.value)
    # Spark accepts only the capital letters T and Z. Converting to capitals is the most expensive step here, and almost
    # no text needs it, so it is tried last.
    capital = F.upper(text)
    found = F.when(_is(text, _ZONED), _ms(_micros(text))).when(_is(text, _DIGITS), text.try_cast("bigint"))
    if time_zone is not None:
        found = found.when(_is(capital, _LOCAL), _local_ms(F.concat(capital, F.lit("Z")), time_zone))
    return found.when(_is(capital, _ZONED), _ms(_micros(capital)))


def wrong_instant(field: Field, ms: Column, time_zone: str | None) -> dict[str, Column]:
    """Return conditions by the text of the mistake; `ms` is the result of `instant` for the field."""
    is_epoch, no_zone = F.lit(field.kind in _WHOLE), F.lit(False)
    if field.kind.startswith(_TEXT):
        text = F.trim(field.value)
        # The comparison of `ms` comes first, so that the regular expression runs only for suspicious texts.
        is_epoch = (ms < LEAST_INSTANT_MS) & _is(text, _DIGITS)
        if time_zone is None:
            no_zone = ms.isNull() & _is(F.upper(text), _LOCAL)
    return {
        NOT_AN_INSTANT: field.value.isNotNull() & ms.isNull() & ~no_zone,
        SECONDS: is_epoch & (ms < LEAST_INSTANT_MS),
        OUTSIDE: (ms > TIME_MAX_MS) | (~is_epoch & (ms < LEAST_INSTANT_MS)),
        **({} if time_zone is not None else {NO_ZONE: no_zone}),
    }


def whole_number(field: Field, name: str, *, signed: bool = False) -> Column:
    """Return a column as bigint; null if the value is no whole number. `signed`: texts may begin with a minus sign.

    Raises InvalidSetting if the column's type cannot be a whole number.
    """
    if field.kind in _WHOLE:
        return field.value.cast("bigint")
    if not field.kind.startswith(_TEXT):
        raise InvalidSetting(f"{name}: a column of type {field.kind} holds no whole numbers; cast it to bigint")
    text = F.trim(field.value)
    return F.when(_is(text, _SIGNED if signed else _DIGITS), text.try_cast("bigint"))


def _is(text: Column, pattern: str) -> Column:
    return F.rlike(text, F.lit(pattern))


def _micros(text: Column) -> Column:
    """Return epoch microseconds of a text with a zone, rounded up; null if there is no such time."""
    more = F.when(_is(text, _BELOW_MICROS), F.lit(1)).otherwise(F.lit(0))
    return F.unix_micros(text.try_cast("timestamp")) + more


def _local_ms(text: Column, time_zone: str) -> Column:
    """Return epoch milliseconds of a text whose Z stands for `time_zone`."""
    more = F.when(_is(text, _BELOW_MICROS), F.lit(1)).otherwise(F.lit(0))
    moment = F.to_utc_timestamp(text.try_cast("timestamp"), time_zone)
    return _ms(F.unix_micros(moment) + more)


def _ms(micros: Column) -> Column:
    """Convert microseconds to milliseconds, rounded up, with integer arithmetic."""
    whole = F.call_function("div", micros, F.lit(1000))
    return whole + F.when((micros > 0) & (micros % 1000 != 0), F.lit(1)).otherwise(F.lit(0))
