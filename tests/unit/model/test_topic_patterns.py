"""Tests of patterns of topic names."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidName
from sandq.model.topic_patterns import PATTERNS_MAX, TopicPattern


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("orders.*", ["orders.eu", "orders."], ["orders", "my.orders.eu", "ordersxeu"]),
        ("orders", ["orders"], ["orders.eu"]),
        ("a?", ["ab", "a1"], ["a", "abc"]),
        ("[ab]-[!0-9]", ["a-x", "b-y"], ["c-x", "a-1"]),
        ("*", ["a", "z" * 249], []),
    ],
)
def test_pattern_matches_only_its_names(pattern: str, names: list[str], others: list[str]) -> None:
    made = TopicPattern([pattern])
    assert all(made.matches(name) for name in names)
    assert not any(made.matches(name) for name in others)


def test_name_matches_one_of_several_patterns() -> None:
    pattern = sandq.pattern("a*", "b*")
    assert pattern.matches("ax") and pattern.matches("bx") and not pattern.matches("cx")
    assert (str(pattern), repr(pattern)) == ("a*, b*", "pattern('a*', 'b*')")


@pytest.mark.parametrize("patterns", [[], [""], ["a b"], ["a" * 250], [5], ["/"], ["é*"], ["*"] * (PATTERNS_MAX + 1)])
def test_invalid_pattern_is_refused(patterns: list[Any]) -> None:
    with pytest.raises(InvalidName, match="pattern"):
        sandq.pattern(*patterns)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not TopicPattern(["*a" * 124]).matches("a" * 200 + "b" * 49)
