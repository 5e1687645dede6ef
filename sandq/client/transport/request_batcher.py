"""Combine single requests of many callers (a cancel, a move, the value of a key) into shared frames.

A caller adds its item. After the other ready tasks have run once, all items of the same kind and partition are sent
together, up to 1,000 per frame. If a caller was cancelled before, its item is not sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.abc

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.on_behalf import asker
from sandq.model.errors import ClosedError, SandqError
from sandq.protocol.requests import OnBehalf
from sandq.protocol.requests_messages import PAGE_MAX

I = TypeVar("I")  # noqa: E741 - of items
R = TypeVar("R")

Ask = Callable[[Cluster, str, int, list[I]], Awaitable[Sequence[R]]]
"""Sends items for one partition of a topic, and returns the outcome of each, in their order."""

ITEMS_BYTES: Final = 4 << 20
"""Maximum total size of the items in one frame, in bytes; a larger item is sent alone."""
_ABANDONED: Final[Any] = object()


class Counter(NamedTuple, Generic[I, R]):
    """The request and the partition that items of one frame share."""

    ask: Ask[I, R]
    topic: str
    partition: int


class _Load(Generic[I, R]):
    """Items that are sent together, and their outcomes by position."""

    __slots__ = ("done", "error", "found", "is_sent", "items", "size")

    def __init__(self) -> None:
        self.size = 0
        self.items: list[I] = []
        self.is_sent = False
        self.done = anyio.Event()
        self.found: Sequence[R] | Mapping[int, R] = ()
        self.error: SandqError | None = None

    def fail(self, error: SandqError) -> None:
        self.error = error
        self.done.set()


class RequestBatcher:
    """Batches the single requests of a client."""

    def __init__(self, cluster: Cluster, tasks: anyio.abc.TaskGroup) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._loads: dict[tuple[Counter[Any, Any], OnBehalf], _Load[Any, Any]] = {}
        """Batches that still accept items. Callers of a gateway (`on_behalf_of`) have separate batches."""

    async def run(self, counter: Counter[I, R], item: I, size: int = 0) -> R:
        """Request one item, and return its outcome.

        `size`: the item's size in bytes, if it may be large. The items of one frame have at most `ITEMS_BYTES` in
        total.
        """
        self._cluster.check_open()
        at = counter, asker()
        load: _Load[I, R] | None = self._loads.get(at)
        if load is None or len(load.items) >= PAGE_MAX or (load.size + size > ITEMS_BYTES and load.items):
            load = self._loads[at] = _Load()
            self._tasks.start_soon(self._carry, at, load)
        position = len(load.items)
        load.items.append(item)
        load.size += size
        try:
            await load.done.wait()
        finally:
            if not load.is_sent:
                load.items[position] = _ABANDONED
        if load.error is not None:
            raise load.error.again()
        return load.found[position]

    async def _carry(self, at: tuple[Counter[I, R], OnBehalf], load: _Load[I, R]) -> None:
        counter, _ = at  # this task inherited the caller of the first item
        try:
            try:
                await anyio.lowlevel.checkpoint()  # let the tasks that are ready now add their items
            finally:
                load.is_sent = True
                if self._loads.get(at) is load:
                    del self._loads[at]
            positions = [position for position, item in enumerate(load.items) if item is not _ABANDONED]
            items = [load.items[position] for position in positions]
            found = await counter.ask(self._cluster, counter.topic, counter.partition, items) if items else ()
        except SandqError as error:
            load.fail(error)
        except BaseException:
            load.fail(ClosedError("the client was closed before the reply came; the request may have been carried out"))
            raise
        else:
            load.found = found if len(items) == len(load.items) else dict(zip(positions, found, strict=True))
            load.done.set()
