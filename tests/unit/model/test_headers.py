"""Tests of headers that a broker accepts, and of stored headers that it no longer accepts."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.headers import MAX_DEPTH, MAX_NESTED, headers_check, headers_or_none
from tests.support.hostile_rows import HEADERS, NO_HEADERS


@pytest.mark.parametrize("name", NO_HEADERS)
def test_headers_that_some_reader_cannot_show_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^headers: "):
        headers_check(NO_HEADERS[name])
    assert headers_or_none(NO_HEADERS[name]) is None


@pytest.mark.parametrize("name", HEADERS)
def test_headers_with_text_keys_are_accepted(name: str) -> None:
    assert msgpack.packb(headers_check(HEADERS[name])) == HEADERS[name]


def test_missing_cell_gives_no_headers() -> None:
    assert headers_or_none(None) == {}


@pytest.mark.parametrize("inner", [[], {}])
def test_depth_and_number_of_maps_and_arrays_are_bounded(inner: Any) -> None:
    def nested(depth: int) -> Any:
        value = inner
        for _ in range(depth - 2):
            value = [value]
        return {"a": value}

    headers_check(msgpack.packb(nested(MAX_DEPTH)))
    headers_check(msgpack.packb({"a": [inner] * (MAX_NESTED - 1)}))
    for wrong in (nested(MAX_DEPTH + 1), {"a": [inner] * MAX_NESTED}):
        with pytest.raises(InvalidRequest, match=f"at most {MAX_NESTED} maps and arrays in {MAX_DEPTH} levels"):
            headers_check(msgpack.packb(wrong))
