"""Randomness, which is given: `random.Random` has it, from the system or from a seed."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """What the core draws."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def choice(self, seq: Sequence[T], /) -> T: ...

    def sample(self, population: Sequence[T], /, k: int) -> list[T]: ...

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...
