"""The structures that find held messages agree with a plain model after any changes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.stale_heaps import FEW, LeastOf, LeastOfRising
from sandq.partition.records import leases
from sandq.partition.records.holders import Holders
from sandq.partition.records.leases import Lease
from sandq.partition.records.packed_ranges import PackedRanges
from tests.support.examples import examples

PLACES = 24
TIMES = (5, 6)
numbers = st.integers(0, 1 << 20)
messages = st.sets(st.tuples(st.sampled_from(TIMES), st.integers(0, PLACES - 1)), max_size=30)
cuts = st.lists(st.booleans(), min_size=60, max_size=60)


def offset_of(message: tuple[int, int]) -> bytes:
    return offsets.pack(message[0], 1, message[1], 0)


def ranges_of(chosen: set[bytes], cut: list[bool]) -> list[Range]:
    """Return the messages as ranges in order. A range ends at a gap, and where `cut` says so."""
    found: list[Range] = []
    for at, offset in enumerate(sorted(chosen)):
        if found and not cut[at % len(cut)] and offsets.distance(found[-1].base, offset) == found[-1].length:
            found[-1] = Range(found[-1].base, found[-1].length + 1)
        else:
            found.append(Range(offset, 1))
    return found


def each(ranges: Any) -> list[bytes]:
    return [offset for base, length in ranges for offset in offsets.run(base, length)]


EVERY = [offset_of((time, place)) for time in TIMES for place in range(PLACES)]


# -- named parts of a lease -------------------------------------------------------------------------------------------

named = st.lists(
    st.tuples(st.sampled_from(EVERY), st.sampled_from([1, 1, 1, 2, 5, b"\x01", b"\x05"])).map(list),
    max_size=30,
)


@settings(max_examples=examples(300), deadline=None)
@given(chosen=messages.filter(bool), cut=st.one_of(cuts, st.just([True] * 60)), what=named)
def test_parts_that_are_looked_up_together_are_those_that_are_looked_up_one_by_one(
    chosen: set[tuple[int, int]], cut: list[bool], what: list[list[Any]]
) -> None:
    ranges = ranges_of({offset_of(one) for one in chosen}, cut)

    def mask_of(many: int) -> tuple[set[bytes], list[bytes]]:
        with mock.patch.object(leases, "MANY", many):
            lease = Lease(7, 1, "c", 1, 9, 9, ranges, 1, 1)
            mask, foreign = lease.mask_of(what)
        return set(each(lease.select(mask))) if mask else set(), each(foreign)

    together, outside = mask_of(1)
    assert (together, outside) == mask_of(1000)
    wanted = [offset for base, extent in what for offset in _named(base, extent)]
    held = set(each(ranges))
    assert together == {offset for offset in wanted if offset in held}
    assert sorted(outside) == sorted(offset for offset in wanted if offset not in held)


def test_mask_is_equal_for_both_kinds_of_look_up() -> None:
    """The result does not depend on `MANY`, so replicas of versions with another value hold the same state."""
    ranges = [Range(offset, 1) for offset in EVERY[:10]]
    far = offsets.pack(99, 1, 0, 0)
    singles = [[base, 1] for base, _ in ranges]
    for what in (
        [[far, 1000], *singles],
        [*[singles[0]] * 80, *[singles[1]] * 3, [EVERY[2], 2]],
        [*[singles[0]] * 80, *[[EVERY[at], b"\x01"] for at in (1, 2, 3)], singles[4]],
        [*[singles[0]] * 85, singles[1]],
        [*[singles[0]] * 83, singles[1]],
    ):
        found = []
        for many in (1, 1000):
            with mock.patch.object(leases, "MANY", many):
                found.append(Lease(7, 1, "c", 1, 9, 9, ranges, 1, 1).mask_of(what))
        assert found[0] == found[1], what


def _named(base: bytes, extent: int | bytes) -> list[bytes]:
    if isinstance(extent, int):
        return offsets.run(base, extent)
    bits = int.from_bytes(extent, "little")
    return [offsets.shift(base, at) for at in range(bits.bit_length()) if bits >> at & 1]


# -- packed ranges ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(chosen=messages, cut=cuts, steps=st.lists(st.tuples(st.sampled_from(["take", "part", "range"]), numbers)))
def test_packed_ranges_are_a_list_of_ranges(
    chosen: set[tuple[int, int]], cut: list[bool], steps: list[tuple[str, int]]
) -> None:
    ranges = ranges_of({offset_of(one) for one in chosen}, cut)
    packed, left = PackedRanges(ranges), list(ranges)
    for what, number in steps:
        known = each(left)
        if what == "take":
            count = number % (len(known) + 2)
            taken = packed.take(count)
            assert each(taken) == known[:count]
            left = [one for one in _without(left, set(known[:count])) if one.length]
        elif known and what == "part":
            offset = known[number % len(known)]
            holding = next(one for one in left if offset in each([one]))
            parts = packed.part(offset)
            assert each(parts) == [one for one in each([holding]) if one != offset]
            left = _without(left, {offset})
        elif known:
            offset = known[number % len(known)]
            holding = next(one for one in left if offset in each([one]))
            assert packed.take_range(offset) == holding
            left.remove(holding)
        assert list(packed) == left
        assert packed.packed() == rows.pack_ranges(left)
        assert (len(packed), packed.messages, bool(packed)) == (len(left), len(each(left)), bool(left))
        assert packed.first == min(each(left), default=None)
        for offset in EVERY:
            found = packed.find(offset)
            assert (found is not None) == (offset in each(left))
            if found is not None:
                assert offsets.shift(left[found[0]].base, found[1]) == offset


def _without(ranges: list[Range], gone: set[bytes]) -> list[Range]:
    """Return the ranges without the messages in `gone`. Adjacent ranges are not joined."""
    return [part for one in ranges for part in ranges_of(set(each([one])) - gone, [False])]


# -- holders ----------------------------------------------------------------------------------------------------------


class Holder:
    """Holds messages until another holder takes them, or it releases them."""

    def __init__(self, holds: dict[bytes, Holder]) -> None:
        self._holds = holds
        self.ranges: list[Range] = []

    def holds(self, offset: bytes) -> bool:
        return self._holds.get(offset) is self


@settings(max_examples=examples(200), deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "put", "settle", "drop", "end"]), messages, cuts, numbers)),
)
def test_holder_of_message_is_the_latest_one(steps: list[Any]) -> None:
    holders, holds, known = Holders(), dict[bytes, Any](), list[Any]()
    for what, chosen, cut, number in steps:
        some = {offset_of(one) for one in chosen}
        if what == "put":
            holder = Holder(holds)
            holder.ranges = ranges_of(some, cut)
            holds.update(dict.fromkeys(some, holder))
            holders.put(holder.ranges, holder)  # type: ignore[arg-type]
            known.append(holder)
        elif known:
            holder = known[number % len(known)]
            mine = {offset for offset in some if holder.holds(offset)}
            if what == "end":
                mine = {offset for offset in EVERY if holder.holds(offset)}
                holders.drop(holder.ranges, holder)
                known.remove(holder)
            elif what == "drop":
                holders.drop(ranges_of(mine, cut), holder)
            # If the step is "settle", the holder releases the messages without a call of `holders`.
            for offset in mine:
                del holds[offset]
        for offset in EVERY:
            assert holders.find(offset) is holds.get(offset)
    for holder in known:
        holders.drop(holder.ranges, holder)
    assert len(holders) == 0, "ended holders leave no entries"


# -- heaps ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 9))))
def test_least_of_changing_values_matches_the_model(steps: list[tuple[int, int | None, int]]) -> None:
    least: LeastOf[int] = LeastOf()
    values: dict[int, int] = {}
    for number, value, limit in steps:
        least.put(number, value)
        values = {**values, number: value} if value is not None else {n: v for n, v in values.items() if n != number}
        assert least.first() == min(((v, n) for n, v in values.items()), default=None)
        assert least.up_to(limit) == sorted(n for n, v in values.items() if v <= limit)


def test_values_that_change_do_not_gather() -> None:
    least: LeastOf[int] = LeastOf()
    least.put(1, 0)
    for value in range(1, 1000):
        least.put(2, value)
        assert least.first() == (0, 1)
    assert len(least._heap) <= 2 * 2 + FEW + 1


def test_a_value_that_falls_and_rises_leaves_nothing_behind() -> None:
    least: LeastOf[int] = LeastOf()
    for number in range(1000):
        least.put(number, 10_000_000 + number)
    for value in range(0, 50_000, 20):
        for now in (value + 10, value + 5, None, value + 7, value + 12):
            least.put(1, now)
            assert least.first() == ((now, 1) if now is not None else (10_000_000, 0))
        assert len([number for _, number in least._heap if number == 1]) <= 2


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "rise", "rise", "end"]), numbers)))
def test_least_of_rising_values_matches_the_model(steps: list[tuple[str, int]]) -> None:
    values: dict[int, int | None] = {}
    least: LeastOfRising[int] = LeastOfRising(values.__getitem__, lambda thing: values[thing] is not None)
    for what, number in steps:
        if what == "add":
            values[len(values)] = number % 20
            least.add(len(values) - 1, number % 20, sum(one is not None for one in values.values()))
        elif values:
            thing = number % len(values)
            if values[thing] is not None:
                values[thing] = None if what == "end" else (values[thing] or 0) + number % 3
        assert least.first() == min((one for one in values.values() if one is not None), default=None)
