"""Heaps that keep stale entries until they reach the top. So no heap searches for an entry that becomes stale.

If the top entry is valid for long, the number of stale entries below it could grow without bound. So a heap with too
many stale entries is rebuilt from its living entries. Between two rebuilds there are at least as many pushes as living
entries, so the cost per push is constant. A rebuild changes no result: before and after it, `first` returns the least
living entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

FEW = 64
"""A heap with at most this many stale entries is never rebuilt, even if it has few living entries."""

V = TypeVar("V", int, bytes)
H = TypeVar("H")


def is_overgrown(entries: int, living: int) -> bool:
    """Return whether a heap must be rebuilt, because most of its entries are stale."""
    return entries > 2 * living + FEW


class LeastOf(Generic[V]):
    """Finds the least of several values. Each belongs to a number (for example, a group id). If values are equal, the
    lowest number comes first. Raising a value costs nothing until the old value reaches the top."""

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._noted: dict[int, V] = {}
        """By number: the value in the only valid heap entry of this number. The current value may be higher."""
        self._heap: list[tuple[V, int]] = []

    def put(self, number: int, value: V | None) -> None:
        """Set the value of a number. None removes it."""
        if value is None:
            self._values.pop(number, None)
            self._noted.pop(number, None)
            return
        self._values[number] = value
        noted = self._noted.get(number)
        if noted is not None and noted <= value:
            # The heap entry is a lower bound of the value, which is enough: `first` corrects it at the top.
            return
        if is_overgrown(len(self._heap), len(self._values)):
            self._heap = [(value, number) for number, value in self._values.items()]
            self._noted = dict(self._values)
            heapq.heapify(self._heap)
        else:
            self._noted[number] = value
            heapq.heappush(self._heap, (value, number))

    def first(self) -> tuple[V, int] | None:
        """Return the least value and its number. None if there are no values."""
        heap, noted = self._heap, self._noted
        while heap:
            value, number = heap[0]
            if noted.get(number) != value:
                heapq.heappop(heap)
                continue
            if (risen := self._values[number]) == value:
                return heap[0]
            noted[number] = risen
            heapq.heapreplace(heap, (risen, number))
        return None

    def up_to(self, value: V) -> list[int]:
        """Return the numbers whose values are at most `value`, in ascending order."""
        first = self.first()
        if first is None or first[0] > value:
            return []
        found: set[int] = set()
        while (first := self.first()) is not None and first[0] <= value:
            found.add(heapq.heappop(self._heap)[1])
        for number in found:
            heapq.heappush(self._heap, (self._values[number], number))
        return sorted(found)


class LeastOfRising(Generic[H]):
    """Finds the least of several values that only rise, until they disappear. An entry is checked again only when it
    reaches the top, so a change of a value costs nothing."""

    def __init__(self, value_of: Callable[[H], Any], has_value: Callable[[H], bool]) -> None:
        """`value_of(thing)` returns the current value. None if the thing no longer has a value; it never gets a value
        again. `has_value(thing)` returns whether it has one: it is called for thousands of things at once."""
        self._value_of = value_of
        self._has_value = has_value
        self._heap: list[tuple[Any, int, H]] = []
        """(value at the last check, a number that makes the entry unique, thing)."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, thing: H, value: Any, living: int) -> None:
        """Add a thing with its current value. `living`: upper bound of the number of things that have a value."""
        if is_overgrown(len(self._heap), living):
            has_value = self._has_value
            self._heap = [one for one in self._heap if has_value(one[2])]
            heapq.heapify(self._heap)
        self._number += 1
        heapq.heappush(self._heap, (value, self._number, thing))

    def first(self) -> Any:
        """Return the least value. None if there are no values."""
        heap = self._heap
        while heap:
            noted, number, thing = heap[0]
            value = self._value_of(thing)
            if value is None:
                heapq.heappop(heap)
            elif value == noted:
                return value
            else:
                heapq.heapreplace(heap, (value, number, thing))
        return None
