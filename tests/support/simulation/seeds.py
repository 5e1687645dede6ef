"""Worlds by their seeds: few whenever tests are run, more in long runs; one that fails says how to see it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

W = TypeVar("W")


def few_of(values: Iterable[Any], few: int) -> list[Any]:
    """Parameters of a test: the first `few` whenever tests are run, the others in long runs."""
    return [value if at < few else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]


def run_each(run: Callable[[int], W], seeds: Iterable[int]) -> list[W]:
    """`run(seed)` of all of them; a failure names the seed."""
    worlds = []
    for seed in seeds:
        try:
            worlds.append(run(seed))
        except BaseException as error:
            error.add_note(f"replay with: {run.__name__}({seed})")
            raise
    return worlds
