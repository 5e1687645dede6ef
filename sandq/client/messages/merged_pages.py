"""Merge the pages of many partitions into one sequence, in ascending or descending order of offsets."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from sandq.client.transport.requests import each
from sandq.model import offsets as offset_model
from sandq.protocol.requests_messages import PAGE_MAX

_ROWS = 20_000
"""Approximate number of rows in memory at a time, over all partitions."""
_LEAST_PAGE = 10


class Row(Protocol):
    """A row with an offset."""

    @property
    def offset(self) -> bytes: ...


R = TypeVar("R", bound=Row)
T = TypeVar("T", covariant=True)

GetPage = Callable[[int, bytes | None, int], Awaitable[tuple[list[R], bytes | None]]]
"""`get(partition, after, limit)` returns a page, and the `after` of the next page."""


class _Source(Generic[R]):
    """One partition: the rest of its current page, and the start of the next one."""

    def __init__(self, partition: int, after: bytes | None) -> None:
        self.partition = partition
        self.rows: deque[R] = deque()
        self.after = after
        self.more = True


class Merged(Generic[R, T]):
    """An async iterator over the rows of many partitions, in the order of their offsets.

    Each page shows its partition at the time of reading. Only one task may iterate; it may stop at any row. No request
    is sent before the first row is requested.
    """

    def __init__(
        self,
        partitions: Callable[[], Awaitable[Sequence[int]]],
        get: GetPage[R],
        made: Callable[[R], T],
        limit: int | None,
        after: str | None = None,
        *,
        newest: bool = False,
    ) -> None:
        """`after`: the text of the offset after which to begin. `newest`: the highest offset comes first."""
        self._after = None if after is None else offset_model.from_text(after)
        self._partitions = partitions
        self._get = get
        self._made = made
        self._left = limit
        self._page = PAGE_MAX
        self._newest = newest
        self._heap: list[tuple[int, int, _Source[R]]] | None = None
        self._taken: _Source[R] | None = None  # the partition whose next row is not in the heap

    def __aiter__(self) -> Merged[R, T]:
        return self

    async def __anext__(self) -> T:
        if self._left is not None and self._left <= 0:
            raise StopAsyncIteration
        if self._heap is None:
            await self._begin()
        if self._taken is not None:
            await self._fill(self._taken)
            self._put(self._taken)
            self._taken = None
        if not self._heap:
            raise StopAsyncIteration
        self._taken = source = heapq.heappop(self._heap)[2]
        if self._left is not None:
            self._left -= 1
        return self._made(source.rows.popleft())

    async def _begin(self) -> None:
        partitions = await self._partitions()
        self._page = max(_LEAST_PAGE, min(PAGE_MAX, _ROWS // max(1, len(partitions)), self._left or PAGE_MAX))
        # In descending order, an offset of any partition is a valid bound.
        behind = (lambda after, _: after) if self._newest else _behind
        sources = [_Source[R](partition, behind(self._after, partition)) for partition in partitions]
        await each(self._fill, sources)
        self._heap = []
        for source in sources:
            self._put(source)

    async def _fill(self, source: _Source[R]) -> None:
        """Read pages until there is a row, or no next page. An empty page may have a next page."""
        while not source.rows and source.more:
            rows, source.after = await self._get(source.partition, source.after, self._page)
            source.more = source.after is not None
            source.rows.extend(rows)

    def _put(self, source: _Source[R]) -> None:
        if source.rows:
            assert self._heap is not None
            number = int.from_bytes(source.rows[0].offset, "big")
            heapq.heappush(self._heap, (-number if self._newest else number, source.partition, source))


def _behind(after: bytes | None, partition: int) -> bytes | None:
    """Return the highest offset of a partition that is not above `after`. No message need have this offset.

    The result has the number of this partition: a broker cannot compare positions of different partitions.
    """
    if after is None:
        return None
    parts = offset_model.unpack(after)
    if partition <= parts.partition:
        return offset_model.pack(parts.deliver_ms, parts.index, parts.place, partition)
    if parts.place:
        return offset_model.pack(parts.deliver_ms, parts.index, parts.place - 1, partition)
    return after
