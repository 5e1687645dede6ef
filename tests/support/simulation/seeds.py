"""Worlds by their seeds: one that fails says how to see it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

W = TypeVar("W")


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
