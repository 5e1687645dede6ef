"""What waits for one group, in lines: of each line in its order, and of all lines as if each had its own pace.

By self-clocked fair queueing (S. J. Golestani, INFOCOM 1994): an item has the mark at which its line would be done with
it if all lines that wait went on side by side, and the lowest mark is next.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BEHIND: Final = object()
"""In place of a line: behind everything that waits by then. What comes after it need not wait for it."""


class FairQueue(Generic[T]):
    """A line that has very much waiting keeps others waiting for as much of it as they have themselves, and for one
    item more. What has no line comes behind everything that waits, and before everything that comes after it: so what
    comes after it waits for all of that as well."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, Hashable, T]] = []
        """A heap of (mark, number, line, item)."""
        self._marks: dict[Hashable, int] = {}
        """Of the last item that waits in a line."""
        self._taken = 0
        """The mark of what was taken last, or is to be taken before everything that comes."""
        self._highest = 0
        self.added = 0
        """How many items were ever added."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, work: int, line: Hashable | None = None) -> None:
        """Put it behind what waits in its line. `work`: what it costs, above zero, in any unit."""
        self.added += 1
        if line is None:
            self._taken = mark = self._highest
        elif line is BEHIND:
            mark = self._highest
        else:
            self._marks[line] = mark = max(self._taken, self._marks.get(line, 0)) + work
            self._highest = max(self._highest, mark)
        heappush(self._items, (mark, self.added, line, item))

    def first(self) -> T:
        """What `take` would give. IndexError: nothing waits."""
        return self._items[0][3]

    def take(self) -> T:
        """Take what is next. IndexError: nothing waits."""
        mark, _, line, item = heappop(self._items)
        self._taken = max(self._taken, mark)
        if self._marks.get(line) == mark:
            del self._marks[line]
        return item

    def take_all(self) -> list[T]:
        """Take all, in the order in which they were added."""
        return self.take_first(self.added)

    def take_first(self, count: int) -> list[T]:
        """Take those that wait still of the first so many that were ever added, in that order."""
        first = sorted((number, item) for _, number, _, item in self._items if number <= count)
        if first:
            self._items = [entry for entry in self._items if entry[1] > count]
            heapify(self._items)
            left = {line for _, _, line, _ in self._items}
            self._marks = {line: mark for line, mark in self._marks.items() if line in left}
        return [item for _, item in first]
