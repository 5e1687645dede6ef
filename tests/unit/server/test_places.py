"""Places for many at once, of which one address never has all."""

from __future__ import annotations

import pytest

from sandq.server.places import Places


@pytest.mark.parametrize(("limit", "share"), [(1, 1), (3, 3), (4, 3), (1000, 750)])
def test_one_address_has_three_quarters(limit: int, share: int) -> None:
    places = Places(limit)
    assert [places.take("a") for _ in range(share + 1)] == [True] * share + [False]
    assert [places.take("b") for _ in range(limit - share + 1)] == [True] * (limit - share) + [False]
    places.give("a")
    assert places.take("b") is (share <= limit), "whoever comes gets what is free"
    assert places.used == limit


def test_what_is_given_back_is_forgotten() -> None:
    places = Places(4)
    places.add("a")
    places.give("a")
    assert places.used == 0 and not places._by_source, "nothing is kept of who has gone"
