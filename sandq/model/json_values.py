"""Values of messages that are JSON: how they are written, marked by a header, and read back.

A message whose value is JSON has the header `content-type` with `application/json`, or a type that ends with `+json`.
Producers set this header for a value that is given as JSON, and readers show such a value as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from sandq.model.errors import InvalidRequest
from sandq.model.headers import HeaderValue, headers_or_none

CONTENT_TYPE: Final = "content-type"
JSON_TYPE: Final = "application/json"
MISSING: Final[Any] = ...
"""Default of an argument for which None is a value."""
PARTS_MOST: Final = 250_000
"""Maximum number of objects, arrays and commas in a JSON text: the time to parse it depends on them."""
ARRAYS_MOST: Final = 50_000
"""Maximum number of arrays in a JSON text."""
MEMBERS_MOST: Final = 10_000
"""Maximum number of members of one object."""
INT_CHARS_MOST: Final = 40
SHOWN_DEPTH_MOST: Final = 100
"""Maximum nesting of a value that is shown as JSON; encoders of responses have a limit of their own."""
_COUNTED_BYTES: Final = 1 << 20
_FLOAT_CHARS_SURE: Final = 15
"""A double keeps every number of up to 15 significant digits that is not close to zero."""
_FLOAT_NORMAL_LEAST: Final = 1e-300
_FLOAT_CHARS_MOST: Final = 400
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def content_of(value: Any, json_value: Any, headers: Any) -> tuple[Any, Any]:
    """Return the value and headers of a message that is given as a value, or as JSON. Raises InvalidRequest.

    `value`, `json_value`: MISSING if it is not given.
    """
    if json_value is MISSING:
        if value is MISSING:
            raise InvalidRequest("a value is expected, or json")
        return value, headers
    if value is not MISSING:
        raise InvalidRequest("value and json: one of them, not both")
    return json_bytes(json_value), with_json_type(headers)


def json_bytes(value: Any) -> bytes:
    """Return the compact JSON text of a value. Raise InvalidRequest if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # includes UnicodeEncodeError
        raise InvalidRequest(f"json: {error}") from None


def json_of(value: bytes | None) -> Any:
    """Return a value parsed as JSON; None if the value was not requested. Raise InvalidRequest if it is no JSON."""
    if value is None:
        raise InvalidRequest("json: there is no value here: it was deleted, or was not asked for")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"json: the value is no JSON: {error}") from None


def with_json_type(headers: Mapping[str, HeaderValue] | None) -> dict[str, HeaderValue]:
    """Return the headers with the content type of JSON, unless they have a content type."""
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers: a mapping is expected, not {type(headers).__name__}")
    kept = dict(headers or {})
    if _content_type(kept) is None:
        kept[CONTENT_TYPE] = JSON_TYPE
    return kept


def has_json_type(cell: bytes | None) -> bool:
    """Return whether stored headers say that the value is JSON."""
    if not cell or b"json" not in cell.lower():
        return False
    content_type = _content_type(headers_or_none(cell) or {})
    if isinstance(content_type, bytes):
        content_type = content_type.decode("latin-1")
    if not isinstance(content_type, str):
        return False
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON_TYPE or media_type.endswith("+json")


def _content_type(headers: Mapping[str, Any]) -> Any:
    """Return the content type in headers; upper and lower case do not matter. None if there is none."""
    if CONTENT_TYPE in headers:
        return headers[CONTENT_TYPE]
    return next((value for name, value in headers.items() if str(name).lower() == CONTENT_TYPE), None)


def read_strictly(text: str) -> Any:
    """Return the value of a JSON text. Stricter than Python's decoder. Raises JSONDecodeError.

    Refuses NaN, numbers that a double would change, repeated members, and nesting that is too deep.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", "", 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # raised by a hook of the decoder
        raise json.JSONDecodeError(str(error), "", 0) from None


def excess_of(body: bytes) -> tuple[str, int] | None:
    """Return which parts of a JSON text are too many, and how many are allowed; None if the text may be parsed at once.

    Counts the bytes of structure, including those within strings, one block of the text at a time.
    """
    parts = arrays = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        piece = body[start : start + _COUNTED_BYTES]
        opened = piece.count(b"[")
        arrays += opened
        parts += opened + piece.count(b"{") + piece.count(b",")
        for what, count, most in (("arrays", arrays, ARRAYS_MOST), ("parts", parts, PARTS_MOST)):
            if count > most:
                return what, most
    return None


def shown_json(value: bytes, cell: bytes | None) -> Any:
    """Return the JSON of a stored value whose headers say that it is JSON; MISSING if it is shown as text or base64.

    A value is not shown as JSON if it is not strict JSON, has too many parts, or is nested too deep. Producers may
    store any bytes under any content type, and one such message must not make a response with many messages fail.
    """
    if not has_json_type(cell) or excess_of(value) is not None:
        return MISSING
    try:
        text = value.decode()
        found = read_strictly(text)
    except ValueError:  # includes JSONDecodeError and UnicodeDecodeError
        return MISSING
    return MISSING if _depth_exceeds(found, SHOWN_DEPTH_MOST) or ("\\u" in text and _has_half(found)) else found


def _depth_exceeds(found: Any, most: int) -> bool:
    """Return whether a value has more than `most` levels of lists and objects."""
    level = [found]
    for _ in range(most):
        level = [part for one in level for part in _parts(one) if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def _parts(one: Any) -> Iterable[Any]:
    """Return the members of an object, or the items of a list; nothing for other values."""
    return one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _has_half(found: Any) -> bool:
    """Return whether a string holds half a surrogate pair, which UTF-8 cannot encode."""
    return _LONE_SURROGATE.search(json.dumps(found, ensure_ascii=False)) is not None


def _refuse_constant(text: str) -> Any:
    """Raise ValueError: NaN and Infinity are not JSON."""
    raise ValueError(f"{text} is not a number")


def _exact(text: str) -> float:
    """Return the number of a JSON text. Raises ValueError if a double would silently be another number."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    is_sure = len(text) <= _FLOAT_CHARS_SURE and abs(number) >= _FLOAT_NORMAL_LEAST
    if not is_sure and (len(text) > _FLOAT_CHARS_MOST or not _is_same(text, number)):
        raise ValueError(f"{text[:40]} has more digits than a double can hold: send it as text")
    return number


def _is_same(text: str, number: float) -> bool:
    """Return whether a number has exactly the value that its text states."""
    try:
        return Decimal(text) == Decimal(repr(number))
    except ArithmeticError:  # an exponent that no Decimal has
        return False


def _whole(text: str) -> int:
    """Return the integer in a text. Raise ValueError if it is very long."""
    if len(text) > INT_CHARS_MOST:
        raise ValueError(f"{text[:40]}... is too large")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raise ValueError if a name is repeated, or if there are too many members."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{twice(name for name, _ in pairs)[0][:80]!r} is there twice")
    if len(found) > MEMBERS_MOST:
        raise ValueError(f"an object has {len(found)} members; {MEMBERS_MOST} at most")
    return found


def twice(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in linear time."""
    return [name for name, count in Counter(names).items() if count > 1]


_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_exact, parse_int=_whole, object_pairs_hook=_once
)
"""The only decoder. `json.loads` would make a new decoder for each text."""
