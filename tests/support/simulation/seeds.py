"""Run worlds by their seeds: few seeds in normal test runs, more in long runs. A failure reports its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

W = TypeVar("W")


def few_of(values: Iterable[Any], few: int) -> list[Any]:
    """Return the parameters of a test. The first `few` run in all test runs, the others only in long runs."""
    return [value if at < few else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]


def run_each(run: Callable[[int], W], seeds: Iterable[int]) -> list[W]:
    """Return `run(seed)` for each seed. If a run fails, add a note with its seed to the error."""
    worlds = []
    for seed in seeds:
        try:
            worlds.append(run(seed))
        except BaseException as error:
            error.add_note(f"replay with: {run.__name__}({seed})")
            raise
    return worlds
