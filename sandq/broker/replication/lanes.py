"""What is to be done for many groups: of each in its order, and of all of them one after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Behind(Generic[T]):
    """What comes behind all that was there before it."""

    item: T
    number: int
    left: int
    """Of those items."""


class Lanes(Generic[T]):
    """A group with much to do keeps the others from their next item no longer than one of its own takes."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, deque[tuple[int, T]]] = OrderedDict()
        """Numbered items by group; whose turn is next stands first."""
        self._behind: deque[_Behind[T]] = deque()
        self._added = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size + len(self._behind)

    def add(self, item: T, lane: int | None) -> None:
        """`lane`: the group that it is for; None: it comes behind everything that is there."""
        self._added += 1
        if lane is None:
            self._behind.append(_Behind(item, self._added, self._size))
            return
        self._size += 1
        items = self._lanes.get(lane)
        if items is None:
            items = self._lanes[lane] = deque()
        items.append((self._added, item))

    def pop(self) -> T:
        """Take what is next. There must be something."""
        if self._behind and not self._behind[0].left:
            return self._behind.popleft().item
        lane, items = self._lanes.popitem(last=False)
        number, item = items.popleft()
        if items:
            self._lanes[lane] = items
        self._size -= 1
        for behind in self._behind:
            if number < behind.number:
                behind.left -= 1
        return item
