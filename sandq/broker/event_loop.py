"""Cooperation of the tasks of one event loop: time slices for long work, and signals that wake waiting tasks."""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import trio
from anyio.lowlevel import RunVar

FIRST_WORK: Final = 128
"""Units of work in the first time slice of a task. One unit is the cost of a small frame, a few microseconds.

The first slices of all tasks may run in the same iteration of the loop."""
SLICE_WORK: Final = 1024
"""Units of work in a later time slice. Only one task has such a slice per iteration of the loop."""
SHARED_WORK: Final = 256
"""Units of work in a later time slice while other tasks are queued.

Fewer than `SLICE_WORK`, so that short requests, such as a produce, do not wait long for a few slices."""


class TimeSlice:
    """The time slice of a task: cooperative scheduling on one event loop.

    A task with much work queues for its next slice. Only one queued task runs per iteration of the
    loop, so tasks with little work do not wait for the queue. Work is counted, not timed, so it is the same on every
    machine.

        time_slice.left -= 8
        if time_slice.left <= 0:
            await time_slice.end()
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = FIRST_WORK
        """Units of work left in this slice. At 0 or below, other tasks must go first."""

    def begin(self) -> None:
        """Start a new first slice, because the task had nothing to do for a while."""
        self.left = FIRST_WORK

    async def end(self) -> None:
        """Queue for the next slice. All queued tasks run first, and all tasks that are not queued."""
        queue = _queue_of_this_loop()
        await queue.wait()
        self.left = SHARED_WORK if queue.is_busy else SLICE_WORK

    async def spend(self, work: int) -> None:
        """Count `work` units. If the slice is used up, queue for the next slice."""
        self.left -= work
        if self.left <= 0:
            await self.end()


class _SliceQueue:
    """Resumes one queued task per iteration of the loop.

    A task that resumes wakes the next task, which then runs in the next iteration.
    """

    def __init__(self) -> None:
        self._waiting: deque[anyio.Event] = deque()
        self.is_busy = False
        """True while a woken task has not resumed yet. When it resumes, it wakes the next task."""

    async def wait(self) -> None:
        """Wait until it is this task's turn, and wake the next task.

        If the task is cancelled after it was woken, it must also wake the next one. Otherwise the queue would stop."""
        mine = anyio.Event()
        self._waiting.append(mine)
        if not self.is_busy:
            self._wake_next()
        try:
            await mine.wait()
        except BaseException:  # the task was cancelled
            if not mine.is_set():
                self._waiting.remove(mine)
            else:
                self._wake_next()
            raise
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the first waiting task, if there is one."""
        self.is_busy = bool(self._waiting)
        if self._waiting:
            self._waiting.popleft().set()


_queue: RunVar[_SliceQueue] = RunVar("sandq_slice_queue")


def _queue_of_this_loop() -> _SliceQueue:
    """Return the queue of the running event loop. Create it on first use."""
    try:
        return _queue.get()
    except LookupError:
        queue = _SliceQueue()
        _queue.set(queue)
        return queue


class Signal:
    """A signal that wakes all tasks that are waiting for it. A `set` while no task waits is lost.

    So a task must check its condition and then wait, without an await in between.
    """

    __slots__ = ("_event", "is_muted")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self.is_muted = False
        """True if a `set` has no effect, because its reason is checked in another way."""

    def set(self) -> None:
        """Wake the waiting tasks."""
        if self.is_muted:
            return
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait until the next `set`."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
