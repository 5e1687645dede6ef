"""A message's headers: one msgpack map per message, decoded only by who needs it.

Persisted, inside of the batch's HEADERS column. We write string keys with scalar values; what another client
wrote below a string key is given back as msgpack has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.limits import DEFAULT

HeaderValue = bytes | str | int | float | bool | None


def headers_pack(headers: Mapping[str, HeaderValue] | None, *, max_bytes: int = DEFAULT.headers_bytes) -> bytes | None:
    """The cell of these headers; None for no headers. InvalidRequest (TooLarge) when they do not fit."""
    if not headers:
        return None
    for key, value in headers.items():
        if not isinstance(key, str):
            raise InvalidRequest(f"headers: a key must be a string, not {type(key).__name__}")
        if value is not None and not isinstance(value, (bytes, str, int, float)):
            raise InvalidRequest(f"headers: the value of {key[:80]!r} cannot be {type(value).__name__}")
    try:
        packed: bytes = msgpack.packb(dict(headers), use_bin_type=True)
    except (ValueError, OverflowError) as error:  # an int above 64 bits, a lone surrogate
        raise InvalidRequest(f"headers: {error}") from None
    if len(packed) > max_bytes:
        raise TooLarge(f"headers: {len(packed)} bytes, {max_bytes} are allowed", limit=max_bytes, size=len(packed))
    return packed


def headers_unpack(cell: bytes | None) -> dict[str, Any]:
    """The headers of a cell, {} for null; InvalidRequest unless it is a map with string keys."""
    if cell is None:
        return {}
    try:
        headers = msgpack.unpackb(cell, raw=False, strict_map_key=True)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"headers: not msgpack: {error}") from None
    if not isinstance(headers, dict) or not all(isinstance(key, str) for key in headers):
        raise InvalidRequest("headers: a map with string keys is expected")
    return headers
