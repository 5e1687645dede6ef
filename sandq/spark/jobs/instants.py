"""Instants and whole numbers in columns, as the grammar of times has them (`sandq/model/times.py`): RFC 3339 or epoch
milliseconds, rounded up, so that nothing is early.

A time without a zone, which a time stamp, a date or a text may be, is taken in the zone that is named. Of two instants
with the same local time, when clocks are put back, it is the first; one that does not exist, when they are put forward,
lies as far behind the gap.
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
"""Digits that Spark's time stamps have no place for."""

NOT_AN_INSTANT: Final = 'not a time: RFC 3339 like "2030-01-31T08:00:00Z", or epoch milliseconds, is expected'
SECONDS: Final = "it looks like seconds; epoch milliseconds are expected"
NO_ZONE: Final = "it has no time zone, and none is named for such times"
OUTSIDE: Final = "it is before March 1973 or after the year 10889"


def instant(field: Field, time_zone: str | None) -> Column:
    """A column as epoch milliseconds (bigint), null where there is none, or it is wrong. InvalidSetting when its type
    can never be a time."""
    kind = field.kind
    if kind in _WHOLE:
        return field.value.cast("bigint")
    if kind == "timestamp":
        return _ms(F.unix_micros(field.value))
    if kind in ("timestamp_ntz", "date"):
        if time_zone is None:
            raise InvalidSetting(f"deliver_at: a column of type {kind} has no time zone; name the one it is in")
        midnight = " 00:00:00Z" if kind == "date" else "Z"
        return _local_ms(F.concat(field.value.cast("string"), F.lit(midnight)), time_zone)
    if not kind.startswith(_TEXT):
        raise InvalidSetting(
            f"deliver_at: a column of type {kind} is no time; a time stamp, text or bigint is expected"
        )
    text = F.trim(field.value)
    # Spark reads capitals only; making them costs more than all else here, and hardly any text needs it.
    capital = F.upper(text)
    found = F.when(_is(text, _ZONED), _ms(_micros(text))).when(_is(text, _DIGITS), text.try_cast("bigint"))
    if time_zone is not None:
        found = found.when(_is(capital, _LOCAL), _local_ms(F.concat(capital, F.lit("Z")), time_zone))
    return found.when(_is(capital, _ZONED), _ms(_micros(capital)))


def wrong_instant(field: Field, ms: Column, time_zone: str | None) -> dict[str, Column]:
    """What is wrong with an instant -> whether it is; `ms` is what `instant` made of the column."""
    is_epoch, no_zone = F.lit(field.kind in _WHOLE), F.lit(False)
    if field.kind.startswith(_TEXT):
        text = F.trim(field.value)
        # Only texts that were read, or were not, are looked at once more.
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
    """A column as bigint, null where it is none. InvalidSetting when its type can never be one. `signed`: texts may
    begin with a minus."""
    if field.kind in _WHOLE:
        return field.value.cast("bigint")
    if not field.kind.startswith(_TEXT):
        raise InvalidSetting(f"{name}: a column of type {field.kind} holds no whole numbers; cast it to bigint")
    text = F.trim(field.value)
    return F.when(_is(text, _SIGNED if signed else _DIGITS), text.try_cast("bigint"))


def _is(text: Column, pattern: str) -> Column:
    return F.rlike(text, F.lit(pattern))


def _micros(text: Column) -> Column:
    """Of a text with a zone; null when there is no such time. Rounded up."""
    more = F.when(_is(text, _BELOW_MICROS), F.lit(1)).otherwise(F.lit(0))
    return F.unix_micros(text.try_cast("timestamp")) + more


def _local_ms(text: Column, time_zone: str) -> Column:
    """Of a text that says Z and means the zone."""
    more = F.when(_is(text, _BELOW_MICROS), F.lit(1)).otherwise(F.lit(0))
    moment = F.to_utc_timestamp(text.try_cast("timestamp"), time_zone)
    return _ms(F.unix_micros(moment) + more)


def _ms(micros: Column) -> Column:
    """Rounded up, in whole numbers only."""
    whole = F.call_function("div", micros, F.lit(1000))
    return whole + F.when((micros > 0) & (micros % 1000 != 0), F.lit(1)).otherwise(F.lit(0))
