"""Work that is done in steps, so that others have the loop between them.

What takes long because of what somebody sent is a generator: it yields, after each step, the units of work that the
step was (`sandq/broker/event_loop.py`: a unit is a few microseconds), and returns what came of it. Units are counted by
bytes and messages, never timed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[int, None, T]


def at_once(steps: Steps[T]) -> T:
    """Do all steps without a pause, and return what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
