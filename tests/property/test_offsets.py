from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model import offsets
from sandq.model.errors import InvalidRequest
from tests.support.examples import examples
from tests.support.lease_tokens import token_parts

U48 = st.integers(0, 2**48 - 1)
PARTS = st.tuples(U48, U48, st.integers(0, 2**20 - 1), st.integers(0, 4095))
OFFSETS = st.binary(min_size=16, max_size=16)

few = settings(max_examples=examples(200), deadline=None)


@few
@given(PARTS, PARTS)
def test_bytes_and_texts_order_as_the_parts_do(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    a, b = offsets.pack(*one), offsets.pack(*other)
    assert offsets.unpack(a) == one
    assert offsets.deliver_ms(a) == one[0]
    assert (a < b) == (one < other) == (offsets.to_text(a) < offsets.to_text(b))
    assert offsets.FIRST <= a <= offsets.ceiling(*one[:2]) <= offsets.LAST


@few
@given(OFFSETS)
def test_every_16_bytes_are_an_offset(offset: bytes) -> None:
    assert offsets.pack(*offsets.unpack(offset)) == offset
    text = offsets.to_text(offset)
    assert len(text) == 26
    assert offsets.from_text(text) == offsets.from_text(text.lower()) == offset


@few
@given(st.text(max_size=30) | st.from_regex(r"\A[0-9A-Za-z]{26}\Z"))
def test_any_text_is_an_offset_or_refused(text: str) -> None:
    try:
        offset = offsets.from_text(text)
    except InvalidRequest:
        return
    assert offsets.to_text(offset) == text.upper().translate(str.maketrans("ILO", "110"))


@few
@given(PARTS, st.integers(1, 300))
def test_runs_shifts_and_distances_agree(parts: tuple[int, ...], count: int) -> None:
    ms, index, place, partition = parts
    base = offsets.pack(ms, index, min(place, 2**20 - count), partition)
    run = offsets.run(base, count)
    assert run == [offsets.shift(base, n) for n in range(count)] == sorted(set(run))
    assert [offsets.distance(base, offset) for offset in run] == list(range(count))
    assert offsets.distance(run[-1], base) == 1 - count
    assert offsets.shift(run[-1], 1 - count) == base
    assert offsets.unpack(run[-1])[3] == partition


@few
@given(PARTS, PARTS)
def test_distance_only_within_a_run(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    a, b = offsets.pack(*one), offsets.pack(*other)
    same = (one[0], one[1], one[3]) == (other[0], other[1], other[3])
    assert offsets.distance(a, b) == (other[2] - one[2] if same else None)
    for part in (0, 1, 3):
        apart = [*one]
        apart[part] ^= 1
        assert offsets.distance(a, offsets.pack(*apart)) is None


@few
@given(PARTS, st.integers(-(2**21), 2**21))
def test_shift_beyond_positions_is_rejected(parts: tuple[int, ...], n: int) -> None:
    try:
        shifted = offsets.shift(offsets.pack(*parts), n)
    except InvalidRequest:
        assert not 0 <= parts[2] + n < 2**20
    else:
        assert offsets.unpack(shifted) == (parts[0], parts[1], parts[2] + n, parts[3])


@few
@given(U48, st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.integers(0, 4095))
def test_tokens_and_leases(index: int, place: int, group: int, partition: int) -> None:
    token = offsets.token(index, place)
    assert token_parts(token) == (index, place)
    assert offsets.parse_lease(offsets.lease_text(group, partition, token)) == (group, partition, token)


@few
@given(st.text(max_size=40) | st.from_regex(r"\A[0-9]{1,21}\.[0-9]{1,5}\.[0-9]{1,21}\Z"))
def test_any_text_is_a_lease_or_refused(text: str) -> None:
    try:
        lease = offsets.parse_lease(text)
    except InvalidRequest:
        return
    assert offsets.lease_text(*lease) == text
