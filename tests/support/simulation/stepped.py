"""Run an engine whose threads are steps that a simulated world runs in any order, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import count
from types import coroutine
from typing import Any

from sandq.broker.clock.timers import Timer
from sandq.broker.replication.applier import Published
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.errors import StorageFailed
from sandq.partition.base.view import View

START_MS = 1_800_000_000_000


class VirtualClock:
    def __init__(self) -> None:
        self.ms = START_MS

    @property
    def reached_ms(self) -> int:
        return self.ms

    def now_ms(self) -> int:
        return self.ms

    def now_s(self) -> float:
        return self.ms / 1000

    def seconds_until(self, at_ms: int) -> float:
        return max(0, at_ms - self.ms) / 1000


class SteppedEvent:
    """Replaces `trio.Event` without trio. `coroutine.send(None)` steps a waiting coroutine, which checks the event."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        while not self._is_set:
            await _pause()


@coroutine
def _pause() -> Generator[None, None, None]:
    yield


class VirtualTimers:
    """Replaces `Timers`. The world fires the timers."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()

    def at(self, at_ms: int, call: Callable[[], None]) -> Timer:
        timer = Timer(self, call)
        heapq.heappush(self._heap, (at_ms, next(self._order), timer))
        return timer

    def live(self) -> int:
        """Return the number of timers that were not cancelled."""
        return sum(timer.call is not None for _, _, timer in self._heap)

    def note_cancelled(self) -> None:
        """Do nothing. The few cancelled timers stay until their time."""

    def pause_ms(self, ms: int) -> int:
        return ms

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def fire(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock.ms:
            heapq.heappop(self._heap)[2].fire()


class Stepped:
    """One life of a node, without its connections."""

    node_log: NodeLog
    """Log of the node, which the subclass sets. It must publish to `published`."""

    def __init__(self, rng: random.Random, clock: VirtualClock) -> None:
        self.rng = rng
        self._rests = random.Random(0)
        """Random numbers that decide when the apply thread rests. They do not change the rest of the world."""
        self._writes = random.Random(1)
        """Random numbers that decide when the thread that writes rows continues. They change nothing else."""
        self.timers = VirtualTimers(clock)
        self.published: deque[Published] = deque()
        self.tasks: deque[Any] = deque()
        self.records: list[Any] | None = None
        """Records of the current commit batch, before their sync; None between batches."""
        self.checkpoint: Iterator[None] | None = None

    def drive(self) -> None:
        """Run all steps in the usual order."""
        for step in (self.tick, self.sync, self.apply, self.answer):
            step()
        self.timers.fire()

    def tick(self) -> None:
        if self.records is None and self.node_log.group_commit.has_work:
            self.records, ready = self.node_log.tick()
            self.tasks.extend(ready)

    def sync(self) -> None:
        if self.records is not None:
            if self.records:
                try:
                    self.node_log.commit(self.records)
                except StorageFailed as error:
                    self.node_log.fail(error)
                    raise
            self.tasks.extend(self.node_log.synced())
            self.records = None

    def apply(self) -> None:
        self.write_rows()
        if self.tasks:
            some = self.rng.randint(1, len(self.tasks))
            self.run([self.tasks.popleft() for _ in range(some)])
            if not self.tasks and self._rests.random() < 0.5:
                self.node_log.applier.rest()

    def write_rows(self) -> None:
        """Run the thread that writes rows. It writes one batch, or nothing while it is slow."""
        if self._writes.random() < 0.3:
            self.node_log.stores.write_one()
            if self.node_log.has_held:
                self.node_log.propose_again()

    def run(self, tasks: list[Any]) -> None:
        """Apply these tasks, as the apply thread does."""
        self.node_log.applier.run(tasks)

    def answer(self) -> None:
        if self.published:
            self.node_log.published(self.published.popleft())

    def step_checkpoint(self) -> None:
        """Run one step of a checkpoint; other steps of the node may run in between."""
        if self.checkpoint is None:
            self.checkpoint = self._checkpoint()
        try:
            next(self.checkpoint)
        except StopIteration:
            self.checkpoint = None

    def _checkpoint(self) -> Iterator[None]:
        applied = self.node_log.applied_indices()
        yield
        self.node_log.stores.flush()
        yield
        self.node_log.truncate(applied)
        for _ in range(2):
            while self.records is not None or self.node_log.group_commit.records:
                self.tick()
                yield
                self.sync()
                yield
            pinning = self.node_log.release()
            yield
            if not self.node_log.copy_tails(pinning):
                break

    def check_rows(self, replica: PartitionReplica) -> None:
        """Check that a partition loaded from the rows equals the one in memory."""
        self.node_log.applier.write()
        rows = replica._rows
        live = replica.machine
        loaded = type(live).load(0, {}, View(rows))
        view = View(rows)
        for group in live.groups.by_id.values():
            group.generation = 0  # a value of the process, which is not part of the state
            group.note_change()
        live.log.garbage.take()  # also a value of the process
        assert loaded.status(view) == live.status(view)
        known = [[(key, one.row()) for key, one in part.producers._known.items()] for part in (loaded, live)]
        assert known[0] == known[1], "a partition loaded from its rows knows other producers, or in another order"
        for group_id, group in live.groups.by_id.items():
            twin = loaded.groups.by_id[group_id]
            assert twin.row() == group.row()
            assert {t: lease.row() for t, lease in twin.leases.items()} == {
                t: lease.row() for t, lease in group.leases.items()
            }
            assert {w.seq: (w.due_ms, w.row()) for w in twin.waiting.values()} == {
                w.seq: (w.due_ms, w.row()) for w in group.waiting.values()
            }
            assert twin.order.blocked == group.order.blocked
