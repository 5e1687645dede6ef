"""Send what many callers ask for one by one (a cancel, a move, the value of a key) in shared frames.

A caller leaves its item; one turn of the event loop later all items of the same kind and partition are sent, at most
1,000 together. An item whose caller was cancelled before that is not sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.abc

from sandq.client.options import again
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.on_behalf import asker
from sandq.model.errors import ClosedError, SandqError
from sandq.protocol.requests import OnBehalf
from sandq.protocol.requests_messages import PAGE_MAX

I = TypeVar("I")  # noqa: E741 - of items
R = TypeVar("R")

Ask = Callable[[Cluster, str, int, list[I]], Awaitable[Sequence[R]]]
"""Requests items of a partition of a topic, and returns the outcome of each, in their order."""

ITEMS_BYTES: Final = 4 << 20
"""Of items that go in one frame; a larger one goes alone."""
_NOBODYS: Final[Any] = object()


class Counter(NamedTuple, Generic[I, R]):
    """What items have to share to go in one frame: the request and the partition."""

    ask: Ask[I, R]
    topic: str
    partition: int


class _Load(Generic[I, R]):
    """Items that go together, and their outcomes, by position."""

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
        """Those that take more, each on behalf of one."""

    async def run(self, counter: Counter[I, R], item: I, size: int = 0) -> R:
        """Request one item, and return its outcome. `size`: its bytes, if they may be many: items of more than
        `ITEMS_BYTES` do not go together."""
        self._cluster.check_open()
        at = counter, asker()
        load: _Load[I, R] | None = self._loads.get(at)
        if load is None or len(load.items) >= PAGE_MAX or (load.size + size > ITEMS_BYTES and load.items):
            load = self._loads[at] = _Load()
            self._tasks.start_soon(self._carry, at, load)
        place = len(load.items)
        load.items.append(item)
        load.size += size
        try:
            await load.done.wait()
        finally:
            if not load.is_sent:
                load.items[place] = _NOBODYS
        if load.error is not None:
            raise again(load.error)
        return load.found[place]

    async def _carry(self, at: tuple[Counter[I, R], OnBehalf], load: _Load[I, R]) -> None:
        counter, _ = at  # the task has come to be on behalf of the same
        try:
            try:
                await anyio.lowlevel.checkpoint()  # those who are about to ask in this turn of the loop come along
            finally:
                load.is_sent = True
                if self._loads.get(at) is load:
                    del self._loads[at]
            places = [place for place, item in enumerate(load.items) if item is not _NOBODYS]
            items = [load.items[place] for place in places]
            found = await counter.ask(self._cluster, counter.topic, counter.partition, items) if items else ()
        except SandqError as error:
            load.fail(error)
        except BaseException:
            load.fail(ClosedError("the client was closed before the answer came; it may have been done"))
            raise
        else:
            load.found = found if len(items) == len(load.items) else dict(zip(places, found, strict=True))
            load.done.set()
