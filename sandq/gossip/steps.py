"""Cooperative scheduling: run expensive work in steps, so that other tasks can run between them.

Work whose duration depends on received data is a generator. After each step it yields the units of work of that step
(`sandq/broker/event_loop.py`: a unit is a few microseconds), and it returns its result. Units are counted by bytes and
messages, not measured by time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[int, None, T]


def at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
