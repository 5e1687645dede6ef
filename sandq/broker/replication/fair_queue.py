"""What waits for one group, by who asked for it: of each in its order, and of all of them in turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BEHIND_ALL: Final = object()
"""In place of who asked: behind everything that waits by then, whoever asked for that."""


class FairQueue(Generic[T]):
    """One who has very much waiting keeps others from being next for one item of its own."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[tuple[int, T]]] = OrderedDict()
        """Numbered items by who asked; whose turn is next stands first."""
        self._behind: deque[tuple[int, T]] = deque()
        """Those that come behind all with a lower number."""
        self.added = 0
        """How many were ever added."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, item: T, of: Hashable) -> None:
        """Put it behind what the same one has waiting, or `BEHIND_ALL`."""
        self.added += 1
        self._size += 1
        line = self._behind if of is BEHIND_ALL else self._lines.setdefault(of, deque())
        line.append((self.added, item))

    def first(self) -> T:
        """What `take` would give. IndexError: nothing waits."""
        return self._next()[0][1]

    def take(self) -> T:
        """Take what is next. IndexError: nothing waits."""
        line = self._next()
        _, item = line.popleft()
        self._size -= 1
        if line is not self._behind:
            of, _ = self._lines.popitem(last=False)
            if line:
                self._lines[of] = line
        return item

    def _next(self) -> deque[tuple[int, T]]:
        if self._behind and all(line[0][0] > self._behind[0][0] for line in self._lines.values()):
            return self._behind
        for line in self._lines.values():
            return line
        raise IndexError("nothing waits")

    def take_all(self) -> list[T]:
        """Take all, in the order in which they were added."""
        return self.take_first(self.added)

    def take_first(self, count: int) -> list[T]:
        """Take those that still wait of the first so many that were ever added, in that order."""
        taken: list[tuple[int, T]] = []
        for line in (*self._lines.values(), self._behind):
            while line and line[0][0] <= count:
                taken.append(line.popleft())
        for of in [of for of, line in self._lines.items() if not line]:
            del self._lines[of]
        self._size -= len(taken)
        return [item for _, item in sorted(taken, key=_number)]


def _number(numbered: tuple[int, T]) -> int:
    return numbered[0]
