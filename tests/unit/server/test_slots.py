"""Tests of shared slots: one address never gets all of them."""

from __future__ import annotations

import pytest

from sandq.server.slots import Slots


@pytest.mark.parametrize(("limit", "share"), [(1, 1), (3, 3), (4, 3), (1000, 750)])
def test_slots_per_address_are_limited_to_three_quarters(limit: int, share: int) -> None:
    slots = Slots(limit)
    assert [slots.take("a") for _ in range(share + 1)] == [True] * share + [False]
    assert [slots.take("b") for _ in range(limit - share + 1)] == [True] * (limit - share) + [False]
    slots.give("a")
    assert slots.take("b") is (share <= limit), "any address gets a free slot"
    assert slots.used == limit


def test_returned_slot_is_forgotten() -> None:
    slots = Slots(4)
    slots.add("a")
    slots.give("a")
    assert slots.used == 0 and not slots._by_source, "no data of closed addresses is kept"
