"""The headers of a message: one msgpack map per message, decoded only by its readers.

PERSISTED in the HEADERS column of a batch. Our clients write string keys with scalar values. `headers_check` defines
what a broker accepts. A reader that must not fail on stored headers uses `headers_or_none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.limits import DEFAULT

HeaderValue = bytes | str | int | float | bool | None
MAX_DEPTH: Final = 16
"""Maximum depth of maps and arrays in headers, the outer map included."""
MAX_NESTED: Final = 32
"""Maximum number of maps and arrays in the values of headers: each of them takes far longer to check than a byte."""
_SCALARS: Final = frozenset({bytes, str, int, float, bool, type(None)})
_TEXT_KEYS: Final = frozenset({str})


def headers_pack(headers: Mapping[str, HeaderValue] | None, *, max_bytes: int = DEFAULT.headers_bytes) -> bytes | None:
    """Return the cell of these headers; None if there are none. Raise InvalidRequest (TooLarge) if they do not fit."""
    if not headers:
        return None
    for key, value in headers.items():
        if not isinstance(key, str):
            raise InvalidRequest(f"headers: a key must be a string, not {type(key).__name__}")
        if value is not None and not isinstance(value, (bytes, str, int, float)):
            raise InvalidRequest(f"headers: the value of {key[:80]!r} cannot be {type(value).__name__}")
    try:
        packed: bytes = msgpack.packb(dict(headers), use_bin_type=True)
    except (ValueError, OverflowError) as error:  # for example, an int above 64 bits or a lone surrogate
        raise InvalidRequest(f"headers: {error}") from None
    if len(packed) > max_bytes:
        raise TooLarge(f"headers: {len(packed)} bytes, {max_bytes} are allowed", limit=max_bytes, size=len(packed))
    return packed


def headers_unpack(cell: bytes | None) -> dict[str, Any]:
    """Return the headers of a cell, {} for null. Raise InvalidRequest unless it is a map with string keys."""
    if cell is None:
        return {}
    try:
        headers = msgpack.unpackb(cell, raw=False, strict_map_key=True)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"headers: not msgpack: {error}") from None
    if not isinstance(headers, dict) or not all(isinstance(key, str) for key in headers):
        raise InvalidRequest("headers: a map with string keys is expected")
    return headers


def headers_check(cell: bytes) -> dict[str, Any]:
    """Return the headers of a cell that a broker accepts: a map of text keys to values that every reader can show.

    Raise InvalidRequest for other keys, extension types, and more nesting than `MAX_DEPTH` and `MAX_NESTED` allow.
    """
    try:
        headers = msgpack.unpackb(cell, raw=False, strict_map_key=True)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"headers: not msgpack: {str(error) or type(error).__name__}") from None
    if type(headers) is not dict or not _TEXT_KEYS.issuperset(map(type, headers)):
        raise InvalidRequest("headers: a map with text keys is expected")
    if not _SCALARS.issuperset(map(type, headers.values())):
        _check_nested(headers)
    return headers


def _check_nested(headers: dict[str, Any]) -> None:
    """Check maps and arrays in the values of headers, level by level."""
    level: list[Any] = [headers]
    nested = 0
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if type(one) is dict and not _TEXT_KEYS.issuperset(map(type, one)):
                raise InvalidRequest("headers: a map in a value has keys that are no text")
            parts = one.values() if type(one) is dict else one
            if not _SCALARS.issuperset(map(type, parts)):
                inner += [part for part in parts if type(part) not in _SCALARS]
        if not inner:
            return
        if any([type(part) is not dict and type(part) is not list for part in inner]):
            raise InvalidRequest("headers: a value is of an extension type: send text or bytes instead")
        nested += len(inner)
        if nested > MAX_NESTED:
            break
        level = inner
    raise InvalidRequest(
        f"headers: at most {MAX_NESTED} maps and arrays in {MAX_DEPTH} levels are accepted: send text or bytes instead"
    )


def headers_or_none(cell: bytes | None) -> dict[str, Any] | None:
    """Return the headers of a stored cell, {} for null; None if a broker would not accept them today."""
    if cell is None:
        return {}
    try:
        return headers_check(cell)
    except InvalidRequest:
        return None
