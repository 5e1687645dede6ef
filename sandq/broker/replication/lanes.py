"""Order the work of many groups: first in, first out within a group, round robin over the groups."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Behind(Generic[T]):
    """An item without a group: it runs after all items that were added before it."""

    item: T
    number: int
    left: int
    """Number of items added before this one that are not done yet."""


class Lanes(Generic[T]):
    """Round-robin queues, one per group.

    The next item of a group waits for at most one item of each other group, even if the other groups have many items.
    If an item yields, the wait is shorter.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, deque[tuple[int, T]]] = OrderedDict()
        """Queue of (number, item) for each group. The first group is next. A group is either here or in `_busy`."""
        self._busy: dict[int, deque[tuple[int, T]]] = {}
        """Queue of (number, item) for each group that has an item in progress."""
        self._behind: deque[_Behind[T]] = deque()
        self._added = 0
        self._size = 0

    def __len__(self) -> int:
        """Return the number of items that are not done."""
        return self._size + len(self._behind)

    def add(self, item: T, lane: int | None) -> None:
        """Add an item. `lane`: the item's group; None: the item runs after all items that were added before it."""
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

    def slice(self, goes_on: Callable[[], bool]) -> Iterator[T]:
        """Yield the next items while `goes_on()` returns true. If there are items, yield at least one.

        An item counts as done when the caller asks for the next item."""
        while self._behind or self._lanes:
            if self._behind and not self._behind[0].left:
                yield self._behind.popleft().item
            else:
                yield from self._one()
            if not goes_on():
                return

    def others(self, goes_on: Callable[[], bool]) -> Iterator[T]:
        """While `goes_on()` returns true, yield items of the groups that have no item in progress.

        Called while an item in progress yields its thread.

        Items without a group stay queued: they must run after all earlier items, and the item in progress is
        unfinished.
        """
        while self._lanes and goes_on():
            yield from self._one()

    def _one(self) -> Iterator[T]:
        """Yield the first item of the next group, and queue the group again once the item is done."""
        lane, items = self._lanes.popitem(last=False)
        number, item = items.popleft()
        self._busy[lane] = items
        yield item
        del self._busy[lane]
        if items:
            self._lanes[lane] = items
        self._size -= 1
        # An item without a group may run once all items that were added before it are done.
        for behind in self._behind:
            if number < behind.number:
                behind.left -= 1
