"""Heaps whose stale entries are skipped when they come to the top, rather than searched for when they end.

Behind one long-lived top stale entries would gather without bound, so a heap that has grown is built anew of what
lives: at most once in as many pushes as there are living entries, which is constant work a push. Nothing depends on
when that happens: what stands on top is the least living entry either way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

FEW = 64
"""Stale entries that are left where they are, however few live."""

V = TypeVar("V", int, bytes)
H = TypeVar("H")


def is_overgrown(entries: int, living: int) -> bool:
    """Return whether a heap has so many entries that it should be built anew."""
    return entries > 2 * living + FEW


class LeastOf(Generic[V]):
    """The least of values of which each number (of a group, say) has one at most; of equal ones, that of the lowest
    number. That a value rises costs nothing until the old one comes to the top."""

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._noted: dict[int, V] = {}
        """As the one entry of a number in the heap that counts has them: they may have risen since."""
        self._heap: list[tuple[V, int]] = []

    def put(self, number: int, value: V | None) -> None:
        """Give a number another value, or (None) none."""
        if value is None:
            self._values.pop(number, None)
            self._noted.pop(number, None)
            return
        self._values[number] = value
        noted = self._noted.get(number)
        if noted is not None and noted <= value:
            return
        if is_overgrown(len(self._heap), len(self._values)):
            self._heap = [(value, number) for number, value in self._values.items()]
            self._noted = dict(self._values)
            heapq.heapify(self._heap)
        else:
            self._noted[number] = value
            heapq.heappush(self._heap, (value, number))

    def first(self) -> tuple[V, int] | None:
        """The least value, and its number; None: there is none."""
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
        """The numbers whose values are not above this one, rising."""
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
    """The least value of things whose values rise, until they have none any more: it is looked at again only when it
    comes to the top, so that a change costs nothing."""

    def __init__(self, value_of: Callable[[H], Any]) -> None:
        """`value_of(thing)`: None when it has none any more, which is final."""
        self._value_of = value_of
        self._heap: list[tuple[Any, int, H]] = []
        """(value when it was looked at last, a number that makes it unique, thing)."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, thing: H, value: Any, living: int) -> None:
        """Put a thing in that has this value now. `living`: how many there are, at most, that have one."""
        if is_overgrown(len(self._heap), living):
            self._heap = [one for one in self._heap if self._value_of(one[2]) is not None]
            heapq.heapify(self._heap)
        self._number += 1
        heapq.heappush(self._heap, (value, self._number, thing))

    def first(self) -> Any:
        """The least value; None: nothing has one."""
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
