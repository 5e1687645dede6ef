"""Whole nodes in one process, on virtual time: `run_node` over fake disks, a fake network, and threads that are tasks.

A machine outlives the node that runs on it. Each of its threads can hang: what it does then neither finishes nor fails
until it goes on.
"""

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
"""What of a machine may hang: its four threads, looks at the free space, and what it answers about its clock."""

THREAD_S: Final = (0.0001, 0.001, 0.01)
"""What a thread needs for what was queued."""

running_on: ContextVar[Life] = ContextVar("running_on")
"""Of each task of a node: whose it is."""


@dataclass
class Machine:
    """What outlives a node."""

    name: str
    port: int
    memory: MemoryFiles = field(default_factory=MemoryFiles)
    stores: MemoryStores = field(default_factory=MemoryStores)
    life: Life | None = None
    hangs: dict[str, trio.Event] = field(default_factory=dict)
    """What hangs: an event that ends it."""
    applied_on_loop: int = 0
    """Entries, over all its lives."""

    def crash(self, rng: random.Random, *, power_loss: bool) -> None:
        self.memory = self.memory.crash(rng) if power_loss else self.memory.kill()
        self.stores = self.stores.crash(rng)

    def wipe(self) -> None:
        self.memory, self.stores = MemoryFiles(), MemoryStores()

    def hang(self, what: str) -> None:
        self.hangs.setdefault(what, trio.Event())

    def go_on(self) -> None:
        for ended in self.hangs.values():
            ended.set()
        self.hangs.clear()

    async def until_free(self, what: str) -> None:
        while what in self.hangs:
            await self.hangs[what].wait()


class Life:
    """One life of a node on its machine."""

    def __init__(self, machine: Machine, nursery: trio.Nursery, rng: random.Random) -> None:
        """`nursery`: where its threads run."""
        self.machine = machine
        self.rng = rng
        self.nursery = nursery
        self.files = FaultyFiles(machine.memory, Plan())
        self.stores = machine.stores
        self.scope = trio.CancelScope()
        self.stopping = trio.Event()
        """It is to end cleanly."""
        self.ended = trio.Event()
        self.serving: Serving | None = None
        self.is_lost = False
        """The machine lost power, or the process was killed: nothing of it goes on."""

    @property
    def name(self) -> str:
        return self.machine.name


class TaskWorker:
    """`Worker` whose thread is a task of the world: what is queued is handled a little later."""

    def __init__(
        self, name: str, handle: Callable[[list[Any]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._life = running_on.get()
        self._kind = THREADS[name]
        self._handle, self._on_crash = handle, on_crash
        self._queue: Any = deque()
        self._items: list[Any] = []
        """What is being handled."""
        self._wake = trio.Event()
        self._turns = 0
        self._closed = False
        self._rest: Callable[[], None] | None = None
        """What is done once nothing has come for a while after some."""
        self._is_resting = False
        self._is_rested = True
        self._life.nursery.start_soon(self._run)

    @property
    def progress(self) -> int | None:
        """As that of `Worker`."""
        return self._turns if self._items or self._is_resting else None

    def submit(self, item: Any) -> None:
        self._queue.append(item)
        self._wake.set()

    def close(self, timeout_s: float | None = None) -> bool:
        """As that of `Worker`; at once. Of a life that is lost nothing is done any more."""
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
                    self._turns += 1
                    await life.machine.until_free(self._kind)
                    if self._rest is not None and not (self._closed or life.is_lost):
                        self._guarded(self._rest)
                    self._is_resting = False
                continue
            self._is_rested = False
            self._items = [self._queue.popleft() for _ in range(life.rng.randint(1, len(self._queue)))]
            self._turns += 1
            await trio.sleep(life.rng.choice(THREAD_S))
            await life.machine.until_free(self._kind)
            if self._closed or life.is_lost:
                return
            self._do(self._items)
            self._items = []


class FairTaskWorker(TaskWorker):
    """`FairWorker`, in the same way."""

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
        """As that of `FairWorker`."""
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
        """No thread of its own uses any."""
        return 0.0

    def others(self) -> Sequence[Any]:
        """Nothing: an entry is applied in no time here, so it gives way to no other."""
        return ()


class _Lanes(Lanes[Any]):
    """With the methods of a queue."""

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
        """Takes them out."""
        return self.slice(lambda: True)

    def clear(self) -> None:
        for _ in self:
            pass


async def in_task(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`trio.to_thread.run_sync` without a thread. What a client asked for, and not a node by itself, takes no time."""
    life = running_on.get(None)
    if life is None:
        await trio.lowlevel.checkpoint()
        return call(*args)
    await trio.sleep(life.rng.choice((0.0, 0.001)))
    if getattr(call, "__name__", "") == "free_bytes":
        await life.machine.until_free(SPACE)
    return call(*args)
