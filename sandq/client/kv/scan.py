"""A scan: the keys of all partitions in order, read page by page.

When a page of a partition arrives, the next page is requested immediately. Pages are merged as a whole, not row by row:
all rows below the smallest unread key of any partition are known, and only need to be sorted. The scan holds at most
two pages per partition in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter

import anyio
import anyio.abc

from sandq.client.kv.entries import Entry
from sandq.client.timeouts import check_timeout, within
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, call_replica
from sandq.model.errors import ClosedError, ProtocolError, SandqError
from sandq.model.times import Duration
from sandq.protocol.requests_keys import KvPage, KvScan

PAGE_ROWS = 2_000
PAGE_BYTES = 1 << 20
"""Maximum number of rows (`PAGE_ROWS`) and bytes of one page."""
ALL_ROWS = 40_000
ALL_BYTES = 16 << 20
"""Approximate maximum number of rows (`ALL_ROWS`) and bytes of the pages of all partitions together."""
_LEAST_ROWS = 10
_LEAST_BYTES = 16 << 10

_key_of = attrgetter("key")


class KeyRange:
    """The keys from `start` up to, but excluding, `stop`. No upper bound if `stop` is None."""

    __slots__ = ("start", "stop")

    def __init__(self, start: bytes, stop: bytes | None) -> None:
        self.start = start
        self.stop = stop

    @classmethod
    def of_prefix(cls, prefix: bytes) -> KeyRange:
        """Return the range of keys that begin with `prefix`."""
        kept = prefix.rstrip(b"\xff")
        return cls(prefix, kept[:-1] + bytes([kept[-1] + 1]) if kept else None)

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.stop <= self.start


class _Page:
    """A requested page, or the error of the request."""

    __slots__ = ("done", "error", "page")

    def __init__(self) -> None:
        self.page: KvPage | None = None
        self.error: SandqError | None = None
        self.done = anyio.Event()


class _Source:
    """One partition: the rows that were read but not returned, and the following page."""

    __slots__ = ("coming", "next", "partition", "rows")

    def __init__(self, partition: int, start: bytes) -> None:
        self.partition = partition
        self.rows: list[Entry] = []
        self.next: bytes | None = start
        """First unread key. None if all rows were read."""
        self.coming: _Page | None = None


class Scan:
    """An async iterator over entries, in the order of their keys.

    Each page shows its partition at the time of reading, slightly ahead of the iterator. The scan as a whole is no
    snapshot. Only one task may iterate; it may stop at any time.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        topic: str,
        partitions: Callable[[], Awaitable[Sequence[int]]],
        keys: KeyRange,
        limit: int | None,
        *,
        stale: bool,
        timeout: Duration | None = None,
    ) -> None:
        """`timeout`: how long each step waits for the next rows."""
        check_timeout(timeout)
        self._cluster = cluster
        self._tasks = tasks
        self._topic = topic
        self._partitions = partitions
        self._keys = keys
        self._left = limit
        self._stale = stale
        self.stale_ms = 0
        """Age of the oldest page that was read, in ms. A stale scan includes all writes that are older than this."""
        self._page_rows, self._page_bytes = PAGE_ROWS, PAGE_BYTES
        self._sources: list[_Source] | None = None
        self._ready: list[Entry] = []  # in reverse order: the next one is last
        self._timeout = timeout
        if keys.is_empty:
            self._sources = []

    def __aiter__(self) -> Scan:
        return self

    async def __anext__(self) -> Entry:
        ready = self._ready
        if not ready:
            ready = self._ready = await within(self._more, self._timeout, "scan")()
            if not ready:
                raise StopAsyncIteration
        return ready.pop()

    async def _more(self) -> list[Entry]:
        """Return the next rows in reverse order. [] at the end."""
        if self._left is not None and self._left <= 0:
            return []
        if self._sources is None:
            await self._begin()
            assert self._sources is not None
        while True:
            rows = self._merged(self._sources)
            if rows:
                break
            self._sources = sources = [source for source in self._sources if source.rows or source.next is not None]
            if not sources:
                return []
            # No row can be returned until the partitions with the smallest unread key have sent their next page.
            bound = min((source.next for source in sources if source.next is not None), default=None)
            for source in sources:
                if bound is not None and source.next == bound:
                    await self._take_page(source)
        if self._left is not None:
            del rows[self._left :]
            self._left -= len(rows)
        rows.reverse()
        return rows

    async def _begin(self) -> None:
        partitions = await self._partitions()
        count = len(partitions)
        most = min(PAGE_ROWS, ALL_ROWS // count)
        self._page_rows = max(_LEAST_ROWS, most) if self._left is None else max(1, min(most, self._left))
        self._page_bytes = max(_LEAST_BYTES, min(PAGE_BYTES, ALL_BYTES // count))
        sources = [_Source(partition, self._keys.start) for partition in partitions]
        for source in sources:
            self._ask(source)
        self._sources = sources

    @staticmethod
    def _merged(sources: list[_Source]) -> list[Entry]:
        """Remove and return the rows below the smallest unread key, because no unread row precedes them."""
        bound = min((source.next for source in sources if source.next is not None), default=None)
        parts: list[list[Entry]] = []
        for source in sources:
            rows = source.rows
            end = len(rows) if bound is None else bisect_left(rows, bound, key=_key_of)
            if end:
                parts.append(rows[:end])
                del rows[:end]
        if len(parts) == 1:
            return parts[0]
        return sorted((row for part in parts for row in part), key=_key_of)

    def _ask(self, source: _Source) -> None:
        """Request the next page of a partition. The task ends by itself, even if the scan is not continued."""
        self._cluster.check_open()
        if source.coming is None and source.next is not None:
            source.coming = _Page()
            self._tasks.start_soon(self._read, source.partition, source.next, source.coming)

    async def _take_page(self, source: _Source) -> None:
        self._ask(source)
        coming = source.coming
        assert coming is not None
        await coming.done.wait()
        source.coming = None
        if coming.page is None:
            raise (coming.error or ClosedError("the client was closed")).again()
        stale_ms, rows, following = coming.page
        if following is not None and (source.next is None or following <= source.next):
            raise ProtocolError("KV_SCAN reply: next does not lie behind the start")
        source.next = following
        self.stale_ms = max(self.stale_ms, stale_ms)
        source.rows += [Entry(key, value, source.partition, stale_ms) for key, value in rows]
        if self._left is None or len(source.rows) < self._left:
            self._ask(source)

    async def _read(self, partition: int, start: bytes, coming: _Page) -> None:
        request = KvScan(self._topic, partition, self._stale, start, self._keys.stop, self._page_rows, self._page_bytes)
        call = call_replica if self._stale else call_leader
        try:
            coming.page = KvPage.parse(await call(self._cluster, request))
        except SandqError as error:
            coming.error = error
        finally:
            coming.done.set()
