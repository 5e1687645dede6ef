"""Queue requests fairly over several flows, and in order within each flow. A flow is, for example, the requests of one
caller.

Self-clocked fair queueing (S. J. Golestani, INFOCOM 1994). Each item gets a mark: the virtual time at which its flow
would finish the item. Virtual time assumes that all waiting flows are served at the same rate. The item with the lowest
mark is next.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BEHIND: Final = object()
"""Passed as the flow of an item that comes after all items that are queued now. Later items may overtake the item."""


class FairQueue(Generic[T]):
    """A queue of flows; the parameter `line` names the flow.

    A long queue of flow A delays flow B only by a limited amount of work. Until the last item of B is taken, the work
    taken from A is at most the work that B has queued, plus one item. An item without a flow comes after all items that
    were added before, and before all items that are added later.
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, int, Hashable, T]] = []
        """A heap of (mark, number, flow, item)."""
        self._marks: dict[Hashable, int] = {}
        """Mark of the last waiting item of each flow."""
        self._taken = 0
        """Virtual time: the highest mark of a taken item. When an item without a flow is added, this time rises to the
        highest mark of all items."""
        self._highest = 0
        self.added = 0
        """Number of items that were ever added."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, work: int, line: Hashable | None = None) -> None:
        """Add an item to the end of the flow `line`. `work`: cost of the item, above 0, in any unit.

        `line` may also be None (no flow) or `BEHIND`."""
        self.added += 1
        if line is None:
            # All later items follow this item: their marks are not lower, and for equal marks the number decides.
            self._taken = mark = self._highest
        elif line is BEHIND:
            mark = self._highest
        else:
            self._marks[line] = mark = max(self._taken, self._marks.get(line, 0)) + work
            self._highest = max(self._highest, mark)
        heappush(self._items, (mark, self.added, line, item))

    def first(self) -> T:
        """Return the item that `take` would return. Raise IndexError if the queue is empty."""
        return self._items[0][3]

    def take(self) -> T:
        """Remove and return the next item. Raise IndexError if the queue is empty."""
        mark, _, line, item = heappop(self._items)
        self._taken = max(self._taken, mark)
        if self._marks.get(line) == mark:
            del self._marks[line]
        return item

    def take_all(self) -> list[T]:
        """Remove all items, and return them in the order in which they were added."""
        return self.take_first(self.added)

    def take_first(self, count: int) -> list[T]:
        """Remove and return the waiting items that are among the first `count` items ever added, in the order of
        arrival."""
        first = sorted((number, item) for _, number, _, item in self._items if number <= count)
        if first:
            self._items = [entry for entry in self._items if entry[1] > count]
            heapify(self._items)
            left = {line for _, _, line, _ in self._items}
            self._marks = {line: mark for line, mark in self._marks.items() if line in left}
        return [item for _, item in first]
