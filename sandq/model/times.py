"""The grammar of times. It is the same in Python, on the command line, in YAML, JSON and headers.

    duration   timedelta | seconds as int or float | text
    text       2w 3d 4h 5m 6s 250ms: one or more, in this order, decimals allowed; a bare number is seconds
    instant    aware datetime | RFC 3339 text ("2030-01-31T08:00:00+01:00") | epoch milliseconds as int,
    digits

Everything becomes whole milliseconds, rounded *up*, so that a message delivered at that millisecond is never early.
Numbers that look like another unit are refused, and the error names both units. Refused instants are an int below
10**11 or a float (seconds), and an int that is too large (microseconds, nanoseconds). A bare number as a duration means
seconds. Above ten years it is refused, because it probably means milliseconds or a smaller unit. A datetime without a
zone is refused, too. Instants and durations fit 48 bits unsigned (the year 10889). No clock is read here.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

from sandq.model.errors import InvalidTime

TIME_MAX_MS = 2**48 - 1
LEAST_INSTANT_MS = 10**11  # March 1973; a smaller number is probably in seconds
DAY_MS = 86_400_000
SECONDS_MOST = 3660 * 86_400  # ten years; a larger bare number is probably in another unit
_LEAST_NANOSECONDS = 10**17  # March 1973 in nanoseconds

Duration = timedelta | int | float | str
Instant = datetime | int | str

S = TypeVar("S", int, float, Fraction)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in ("w", "d", "h", "m(?!s)", "s", "ms")))
_SECONDS = re.compile(_NUMBER)
_WORDS = re.compile(rf"{_NUMBER} *([a-zµ]+)")
_UNIT_WORDS = {
    word: unit
    for unit, words in {
        "w": "w wk wks week weeks",
        "d": "d day days",
        "h": "h hr hrs hour hours",
        "m": "m min mins minute minutes",
        "s": "s sec secs second seconds",
        "ms": "ms msec millis millisecond milliseconds",
    }.items()
    for word in words.split()
}
_EPOCH_TEXT = re.compile(r"[0-9]{1,20}")
_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_TEXT_CHARS = 64
_DURATION_FORMS = 'seconds, or text like "90s", "5m", "1h30m", "250ms" is expected'
_INSTANT_FORMS = 'RFC 3339 text like "2030-01-31T08:00:00Z", or whole epoch milliseconds are expected'

# The Gregorian calendar repeats after 400 years. This is used to write years above 9999, which datetime does not
# support.
_CYCLE_MS = 146_097 * 86_400_000
_YEAR_10000_MS = 253_402_300_800_000


def _refuse(what: str, value: object, why: str) -> InvalidTime:
    """Return the error for a value that is no duration or instant."""
    shown = repr(value)
    return InvalidTime(f"{shown if len(shown) <= 80 else shown[:80] + '...'} is not {what}: {why}")


def _delta_ms(delta: timedelta) -> int:
    """Return the whole milliseconds of a timedelta, rounded up, computed with integers only."""
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if getattr(delta, "nanoseconds", 0):  # pandas has finer timedeltas
        micros += 1
    return -(-micros // 1000)


def duration_ms(value: Duration) -> int:
    """Return the milliseconds of a duration, rounded up. Raise InvalidTime if it is negative, not finite or no
    duration."""
    if isinstance(value, timedelta):
        ms = _delta_ms(value)
    elif isinstance(value, str):
        ms = _text_ms(value)
    elif isinstance(value, bool):
        raise _refuse("a duration", value, _DURATION_FORMS)
    elif isinstance(value, int):
        ms = _checked_seconds(value, value) * 1000
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refuse("a duration", value, "it must be finite")
        _checked_seconds(value, value)
        # Use the shortest decimal that stands for this float, so that 1.1 seconds are 1100 ms and not 1101.
        ms = math.ceil(Fraction(Decimal(repr(float(value)))) * 1000)
    else:
        raise _refuse("a duration", value, _DURATION_FORMS)
    # A negative value of less than a millisecond rounds up to 0, so check the value as well.
    negative = ms < 0 or (isinstance(value, timedelta) and value.days < 0)
    if negative or (isinstance(value, float) and value < 0):
        raise _refuse("a duration", value, "it must not be negative")
    if ms > TIME_MAX_MS:
        raise _refuse("a duration", value, f"at most {TIME_MAX_MS} ms are allowed")
    return ms


def _checked_seconds(value: object, seconds: S) -> S:
    """Return a bare number of seconds. Raise InvalidTime if it is more than ten years."""
    if seconds > SECONDS_MOST:
        raise _refuse(
            "a duration",
            value,
            'a bare number is seconds, and these are more than ten years; say another unit: "5000ms", "4000d"',
        )
    return seconds


def _text_ms(text: str) -> int:
    """Return the duration in a text in ms, rounded up. Raise InvalidTime."""
    if len(text) > _TEXT_CHARS:
        raise _refuse("a duration", text, _DURATION_FORMS)
    if _SECONDS.fullmatch(text):
        return math.ceil(_checked_seconds(text, Fraction(text)) * 1000)
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise _refuse("a duration", text, _duration_hint(text))
    parts = zip(match.groups(), _UNITS_MS.values(), strict=True)
    return math.ceil(sum(Fraction(number) * unit_ms for number, unit_ms in parts if number is not None))


def _duration_hint(text: str) -> str:
    """Return how to write the duration that a text probably means; if that is unclear, the general forms."""
    plain = text.strip().lower()
    if plain.startswith("-") and (_DURATION.fullmatch(plain[1:]) or _SECONDS.fullmatch(plain[1:])) and plain != "-":
        return "it must not be negative"
    words = [(number, _UNIT_WORDS.get(unit)) for number, unit in _WORDS.findall(plain)]
    written = "".join(f"{number}{unit}" for number, unit in words)
    is_whole = bool(words) and not _WORDS.sub("", plain).strip(" ,") and all([unit for _, unit in words])
    if is_whole and _DURATION.fullmatch(written):
        return f'it is written "{written}"'
    return _DURATION_FORMS


def instant_ms(value: Instant) -> int:
    """Return the epoch milliseconds of an instant, rounded up. Raise InvalidTime if it is no instant, or ambiguous."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _refuse("an instant", value, "it has no time zone")
        ms = _delta_ms(value - _EPOCH)
        low = 0
    elif isinstance(value, str):
        if _EPOCH_TEXT.fullmatch(value):
            return instant_ms(int(value))
        ms, low = _rfc_3339_ms(value), 0
    elif isinstance(value, int) and not isinstance(value, bool):
        ms, low = value, LEAST_INSTANT_MS
        if ms > TIME_MAX_MS:
            unit = "microseconds" if ms < _LEAST_NANOSECONDS else "nanoseconds"
            raise _refuse("an instant", value, f"it looks like {unit}; epoch milliseconds are expected")
    elif isinstance(value, float):
        raise _refuse("an instant", value, _float_hint(value))
    else:
        raise _refuse("an instant", value, _INSTANT_FORMS)
    if ms < 0:
        raise _refuse("an instant", value, "it is before 1970")
    if ms < low:
        raise _refuse("an instant", value, "it looks like seconds; epoch milliseconds are expected")
    if ms > TIME_MAX_MS:
        raise _refuse("an instant", value, f"at most {TIME_MAX_MS} ms are allowed")
    return ms


def _float_hint(value: float) -> str:
    """Return what a float probably means: milliseconds with a fraction, or seconds."""
    if LEAST_INSTANT_MS <= value <= TIME_MAX_MS:
        return f"epoch milliseconds are a whole number: {math.ceil(value)}"
    return "it looks like seconds; whole epoch milliseconds are expected"


def _rfc_3339_ms(text: str) -> int:
    """Return the instant in a text of RFC 3339, in ms since 1970, rounded up. Raise InvalidTime."""
    match = _RFC_3339.fullmatch(text) if len(text) <= _TEXT_CHARS else None
    if match is None:
        raise _refuse("an instant", text, _INSTANT_FORMS)
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    if match[8] is None and match[9] is None:
        raise _refuse("an instant", text, "it has no time zone; append Z or an offset like +01:00")
    # A leap second is read as the second after it, because times may be late but never early.
    leap = 1 if second == 60 else 0
    try:
        zone = UTC
        if match[9] is not None:
            if int(match[11]) > 59:
                raise ValueError("offset minutes must be in 0..59")
            offset = timedelta(hours=int(match[10]), minutes=int(match[11]))
            zone = timezone(-offset if match[9] == "-" else offset)
        moment = datetime(year, month, day, hour, minute, second - leap, tzinfo=zone)
    except ValueError as error:
        raise _refuse("an instant", text, str(error)) from None
    fraction_ms = math.ceil(Fraction("0" + match[7]) * 1000) if match[7] else 0
    return _delta_ms(moment - _EPOCH) + leap * 1000 + fraction_ms


def format_instant(ms: int) -> str:
    """Return RFC 3339 text in UTC with milliseconds. A year above 9999 gets a plus sign, as in ISO 8601."""
    if not 0 <= ms <= TIME_MAX_MS:
        raise _refuse("an instant", ms, f"it is not within 0..{TIME_MAX_MS} ms")
    if ms >= _YEAR_10000_MS:
        cycles = (ms - _YEAR_10000_MS) // _CYCLE_MS + 1
        text = format_instant(ms - cycles * _CYCLE_MS)
        return f"+{int(text[:4]) + 400 * cycles}{text[4:]}"
    moment = _EPOCH + timedelta(seconds=ms // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def format_duration(ms: int) -> str:
    """Return the text of a duration, largest unit first: "1d2h", "250ms", "0s". `duration_ms` reads it back."""
    if ms < 0:
        raise _refuse("a duration", ms, "it must not be negative")
    text = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, ms = divmod(ms, _UNITS_MS[unit])
        if number:
            text.append(f"{number}{unit}")
    return "".join(text) or "0s"
