"""Tests of ACK and NACK: consecutive ranges are merged, and nothing else is changed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.errors import InvalidRequest
from sandq.protocol import requests
from sandq.protocol.frames import Type
from sandq.protocol.requests import MANY, RANGE_MESSAGES, Ack, Nack, ranges_of

BASE = offsets.pack(1_700_000_000_000, 77, 5, 3)


def at(place: int, base: bytes = BASE) -> bytes:
    return offsets.shift(base, place)


def acked(what: Any) -> Any:
    return Ack.parse([int(Type.ACK), 1, 2, 3, [[9, what]]]).items[0][1]


def named(what: list[list[Any]]) -> list[bytes]:
    """Return each message that ranges without bitmaps name, in order."""
    return [offset for base, count in what for offset in offsets.run(base, count)]


def test_messages_one_behind_the_other_are_one_range() -> None:
    assert acked([[at(place), 1] for place in range(500)]) == [[BASE, 500]]
    assert acked([[at(0), 3], [at(3), 2], [at(5), 1]]) == [[BASE, 6]]


@pytest.mark.parametrize(
    "what",
    [
        [[at(0), 1], [at(2), 1]],
        [[at(1), 1], [at(0), 1]],
        [[at(0), 1], [at(0), 1]],
        [[at(0), 2], [at(1), 2]],
        [[at(0), 1], [offsets.pack(1_700_000_000_000, 77, 6, 4), 1]],
        [[at(0), 1], [offsets.pack(1_700_000_000_000, 78, 6, 3), 1]],
        [[at(0), 1], [at(1), b"\x01"], [at(2), 1]],
        [[at(0), b"\x01"], [at(1), 1]],
    ],
)
def test_ranges_that_are_not_adjacent_stay_separate(what: list[list[Any]]) -> None:
    assert acked([list(row) for row in what]) == what


def test_a_range_has_no_more_than_a_batch() -> None:
    merged = acked([[at(0), RANGE_MESSAGES - 1], [at(RANGE_MESSAGES - 1), 1], [at(RANGE_MESSAGES), 1]])
    assert merged == [[at(0), RANGE_MESSAGES], [at(RANGE_MESSAGES), 1]]


def test_a_range_does_not_run_on_into_the_next_entry() -> None:
    last = offsets.pack(5, 77, offsets.PLACE_MAX, 3)
    first = offsets.pack(5, 78, 0, 3)
    assert acked([[last, 1], [first, 1]]) == [[last, 1], [first, 1]]
    assert acked([[offsets.LAST, 1], [offsets.FIRST, 1]]) == [[offsets.LAST, 1], [offsets.FIRST, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_joined_ranges_name_the_same_messages(seed: int) -> None:
    rng = random.Random(seed)
    what = [[at(rng.randrange(40)), rng.randrange(1, 4)] for _ in range(rng.randrange(1, 60))]
    asked = named(what)
    assert named(acked([list(row) for row in what])) == asked, seed


def test_adjacent_ranges_of_nacks_are_joined() -> None:
    parsed = Nack.parse([int(Type.NACK), 1, 2, 3, [[9, [[at(0), 1], [at(1), 1]], None, None]]])
    assert parsed.items == [[9, [[BASE, 2]], None, None]]


@pytest.mark.parametrize(
    "bad", [[], [[at(0)]], [[at(0), 0]], [[at(0), True]], [[b"x", 1]], [[at(0), b""]], "x", [[at(0), 1], 7]]
)
def test_invalid_input_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest):
        acked(bad)


def test_range_up_to_the_last_position() -> None:
    base = offsets.pack(1, 1, offsets.PLACE_MAX - 3, 0)
    for extent in (1, 4, b"\x0f", b"\x01\x00\x00"):
        assert acked([[base, extent]]) == [[base, extent]]


def _each(what: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Merge the ranges one by one, without the fast path for many ranges."""
    with monkeypatch.context() as slow:
        slow.setattr(requests, "MANY", len(what) + 1)
        return ranges_of(Ack, 0, what)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    near = rng.choice([1, 3, 1000])
    places = rng.sample(range(near * MANY), MANY)
    what = [[offsets.pack(1000 + place // 7 * rng.randint(0, 1), 5, place, 3), 1] for place in sorted(places)]
    if rng.random() < 0.3:
        what[rng.randrange(MANY)][1] = rng.choice([2, b"\5"])
    assert ranges_of(Ack, 0, what) == _each(what, monkeypatch)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [b"short", 1],
        [bytes(16)],
        [bytes(16), 0],
        [bytes(16), True],
        ["0123456789abcdef", 1],
        (bytes(16), 1),
        7,
        None,
    ],
)
def test_invalid_ranges_raise_the_same_error(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    what: list[Any] = [[offsets.pack(1000 + at, 5, 0, 3), 1] for at in range(MANY)]
    what[MANY // 2] = wrong
    with pytest.raises(InvalidRequest) as together:
        ranges_of(Ack, 0, what)
    with pytest.raises(InvalidRequest) as one_by_one:
        _each(what, monkeypatch)
    assert str(together.value) == str(one_by_one.value)
