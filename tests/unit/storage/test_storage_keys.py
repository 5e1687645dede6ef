"""Tests that encoded keys sort like their values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.model.errors import Corruption
from sandq.storage import keys
from tests.support.storage.key_strings import take_string

ROWS = st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=6), st.integers(0, 2**64 - 1))


def encode(row: tuple[int, bytes, int]) -> bytes:
    return keys.u32(row[0]) + keys.string(row[1]) + keys.u64(row[2])


@given(ROWS, ROWS)
def test_keys_sort_like_their_rows(one: tuple[int, bytes, int], two: tuple[int, bytes, int]) -> None:
    assert (encode(one) < encode(two)) == (one < two)
    assert (encode(one) == encode(two)) == (one == two)


@given(st.text(alphabet="\0\1a\xff", max_size=8), st.binary(max_size=4))
def test_a_string_ends_by_itself(text: str, behind: bytes) -> None:
    content = text.encode("latin-1")
    key = b"head" + keys.string(content) + behind
    assert take_string(key, 4) == (content, len(key) - len(behind))


@pytest.mark.parametrize("key", [b"", b"abc", b"a\0", b"a\0\2", b"a\0\xff"])
def test_half_a_string(key: bytes) -> None:
    with pytest.raises(Corruption):
        take_string(key, 0)


@given(st.binary(min_size=1, max_size=5), st.binary(max_size=5))
def test_after_prefix_returns_the_end_of_the_prefix(prefix: bytes, behind: bytes) -> None:
    if not prefix.strip(b"\xff"):
        with pytest.raises(ValueError, match="0xff"):
            keys.after_prefix(prefix)
        return
    stop = keys.after_prefix(prefix)
    assert prefix + behind < stop
    assert stop > prefix + b"\xff" * 20


def test_store_range_covers_one_store() -> None:
    start, stop = keys.store_range(255)
    assert start == b"\0\0\0\xff" and stop == b"\0\0\1"
    assert start <= keys.store_prefix(255) + b"\xff" * 9 < stop <= keys.store_prefix(256)
    assert keys.store_of(keys.store_prefix(7) + b"x") == 7


def test_numbers() -> None:
    assert keys.u16(258) == b"\1\2"
    assert keys.u48(2**48 - 1) == b"\xff" * 6
    with pytest.raises(OverflowError):
        keys.u48(2**48)
