"""What is to be done for many groups: of each in its order, and of all of them one after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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
    """A group with much to do keeps the others from their next item no longer than one of its own takes; while that
    gives way, not even so long."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, deque[tuple[int, T]]] = OrderedDict()
        """Numbered items by group; whose turn is next stands first. Without groups of which an item is being done."""
        self._busy: dict[int, deque[tuple[int, T]]] = {}
        """The same of those."""
        self._behind: deque[_Behind[T]] = deque()
        self._added = 0
        self._size = 0

    def __len__(self) -> int:
        """All that is not done."""
        return self._size + len(self._behind)

    def add(self, item: T, lane: int | None) -> None:
        """`lane`: the group that it is for; None: it comes behind everything that is there."""
        self._added += 1
        if lane is None:
            self._behind.append(_Behind(item, self._added, self._size))
            return
        self._size += 1
        items = self._busy.get(lane)
        if items is None:
            items = self._lanes.get(lane)
        if items is None:
            items = self._lanes[lane] = deque()
        items.append((self._added, item))

    def turn(self, goes_on: Callable[[], bool]) -> Iterator[T]:
        """Take what is next, one thing at least if there is any: each is done when the next one is asked for."""
        while self._behind or self._lanes:
            if self._behind and not self._behind[0].left:
                yield self._behind.popleft().item
            else:
                yield from self._one()
            if not goes_on():
                return

    def beside(self, goes_on: Callable[[], bool]) -> Iterator[T]:
        """The same while others are being done, none of which is of these groups: but for what comes behind all."""
        while self._lanes and goes_on():
            yield from self._one()

    def _one(self) -> Iterator[T]:
        lane, items = self._lanes.popitem(last=False)
        number, item = items.popleft()
        self._busy[lane] = items
        yield item
        del self._busy[lane]
        if items:
            self._lanes[lane] = items
        self._size -= 1
        for behind in self._behind:
            if number < behind.number:
                behind.left -= 1
