"""Run whole nodes in one process, in virtual time: `run_node` over fake disks, a fake network, and tasks as threads.

A machine outlives the nodes that run on it. Each thread of a machine can hang: its current work neither finishes nor
fails until the hang ends."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from sandq.broker.replication.lanes import Lanes
from sandq.broker.replication.worker import REST_S
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.storage.faulty_files import FaultyFiles, Plan

if TYPE_CHECKING:
    from sandq.node.running import Serving

THREADS: Final = {
    "sandq-wal": "log",
    "sandq-apply": "state",
    "sandq-rows": "rows",
    "sandq-maintenance": "maintenance",
}
SPACE: Final = "space"
CLOCK: Final = "clock"
HANGS: Final = (*THREADS.values(), SPACE, CLOCK)
"""Parts of a machine that may hang: its four threads, checks of the free space, and answers about its clock."""

THREAD_S: Final = (0.0001, 0.001, 0.01)
"""Possible times that a thread takes to handle the queued items, in seconds."""

running_on: ContextVar[Life] = ContextVar("running_on")
"""Life of a node to which the current task belongs."""


@dataclass
class Machine:
    """A machine, which outlives the nodes that run on it."""

    name: str
    port: int
    memory: MemoryFiles = field(default_factory=MemoryFiles)
    stores: MemoryStores = field(default_factory=MemoryStores)
    life: Life | None = None
    hangs: dict[str, trio.Event] = field(default_factory=dict)
    """Parts that hang, with the event that ends the hang."""
    applied_on_loop: int = 0
    """Number of entries that were applied on the event loop, in all lives."""

    def crash(self, rng: random.Random, *, power_loss: bool) -> None:
        self.memory = self.memory.crash(rng) if power_loss else self.memory.kill()
        self.stores = self.stores.crash(rng)

    def wipe(self) -> None:
        self.memory, self.stores = MemoryFiles(), MemoryStores()

    def hang(self, what: str) -> None:
        self.hangs.setdefault(what, trio.Event())

    def resume(self) -> None:
        for ended in self.hangs.values():
            ended.set()
        self.hangs.clear()

    async def until_free(self, what: str) -> None:
        while what in self.hangs:
            await self.hangs[what].wait()


class Life:
    """One life of a node on its machine."""

    def __init__(self, machine: Machine, nursery: trio.Nursery, rng: random.Random) -> None:
        """`nursery`: runs the threads of the node as tasks."""
        self.machine = machine
        self.rng = rng
        self.nursery = nursery
        self.files = FaultyFiles(machine.memory, Plan())
        self.stores = machine.stores
        self.scope = trio.CancelScope()
        self.stopping = trio.Event()
        """Set to stop the node cleanly."""
        self.ended = trio.Event()
        self.serving: Serving | None = None
        self.is_lost = False
        """Whether the machine lost power or the process was killed. Then no task of this life continues."""

    @property
    def name(self) -> str:
        return self.machine.name


class TaskWorker:
    """Replaces `Worker`. Its thread is a task of the world, which handles queued items a little later."""

    def __init__(
        self, name: str, handle: Callable[[list[Any]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._life = running_on.get()
        self._kind = THREADS[name]
        self._handle, self._on_crash = handle, on_crash
        self._queue: Any = deque()
        self._items: list[Any] = []
        """Items that are being handled."""
        self._wake = trio.Event()
        self._rounds = 0
        self._closed = False
        self._rest: Callable[[], None] | None = None
        """Function that is called when the queue stays empty for a while after some items."""
        self._is_resting = False
        self._is_rested = True
        self._life.nursery.start_soon(self._run)

    @property
    def progress(self) -> int | None:
        """Like `Worker.progress`."""
        return self._rounds if self._items or self._is_resting else None

    def submit(self, item: Any) -> None:
        self._queue.append(item)
        self._wake.set()

    def close(self, timeout_s: float | None = None) -> bool:
        """Like `Worker.close`, but immediate. A lost life handles no more items."""
        if not self._life.is_lost and not self._closed:
            items = [*self._items, *self._queue]
            self._queue.clear()
            if self._kind in self._life.machine.hangs and items:
                return False
            if items:
                self._do(items)
        self._closed = True
        self._wake.set()
        return True

    def _do(self, items: list[Any]) -> None:
        self._guarded(partial(self._handle, items))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as crash:
            self._closed = True
            self._on_crash(crash)

    async def _run(self) -> None:
        life = self._life
        while not self._closed:
            if not self._queue:
                self._wake = trio.Event()
                with trio.move_on_after(math.inf if self._is_rested else REST_S):
                    await self._wake.wait()
                if not self._queue and not self._closed and not self._is_rested:
                    self._is_rested = self._is_resting = True
                    self._rounds += 1
                    await life.machine.until_free(self._kind)
                    if self._rest is not None and not (self._closed or life.is_lost):
                        self._guarded(self._rest)
                    self._is_resting = False
                continue
            self._is_rested = False
            self._items = [self._queue.popleft() for _ in range(life.rng.randint(1, len(self._queue)))]
            self._rounds += 1
            await trio.sleep(life.rng.choice(THREAD_S))
            await life.machine.until_free(self._kind)
            if self._closed or life.is_lost:
                return
            self._do(self._items)
            self._items = []


class FairTaskWorker(TaskWorker):
    """Like `TaskWorker`, for `FairWorker`."""

    def __init__(
        self,
        name: str,
        handle: Callable[[list[Any]], None],
        on_crash: Callable[[BaseException], None],
        lane_of: Callable[[Any], int | None],
        rest: Callable[[], None],
        handle_here: Callable[[Sequence[Any]], int],
    ) -> None:
        super().__init__(name, handle, on_crash)
        self._handle_here = handle_here
        self._queue = _Lanes(lane_of)
        self._rest = rest

    def run_here(self, items: Sequence[Any]) -> int:
        """Like `FairWorker.run_here`."""
        is_idle = not (self._items or self._queue or self._is_rested or self._closed)
        if not is_idle or self._life.is_lost or self._kind in self._life.machine.hangs:
            return 0
        count = len(items)

        def run() -> None:
            nonlocal count
            count = self._handle_here(items)

        self._guarded(run)
        self._life.machine.applied_on_loop += count
        return count

    def cpu_s(self) -> float:
        """Return 0: there is no thread that uses CPU time."""
        return 0.0

    def others(self) -> Sequence[Any]:
        """Return no groups. Here, applying an entry takes no time, so it never yields to other groups."""
        return ()


class _Lanes(Lanes[Any]):
    """Lanes with the methods of a queue."""

    def __init__(self, lane_of: Callable[[Any], int | None]) -> None:
        super().__init__()
        self._lane_of = lane_of

    def append(self, item: Any) -> None:
        self.add(item, self._lane_of(item))

    def popleft(self) -> Any:
        for item in self.slice(lambda: False):
            found = item
        return found

    def __iter__(self) -> Iterator[Any]:
        """Remove and yield all items."""
        return self.slice(lambda: True)

    def clear(self) -> None:
        for _ in self:
            pass


async def in_task(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Replace `trio.to_thread.run_sync`, without a thread. Calls of nodes take some time, calls of clients none."""
    life = running_on.get(None)
    if life is None:
        await trio.lowlevel.checkpoint()
        return call(*args)
    await trio.sleep(life.rng.choice((0.0, 0.001)))
    if getattr(call, "__name__", "") == "free_bytes":
        await life.machine.until_free(SPACE)
    return call(*args)
