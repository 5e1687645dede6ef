"""Cooperation of the tasks of one event loop: time slices for long work, and signals that wake waiting tasks."""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import trio
from anyio.lowlevel import RunVar

FIRST_WORK: Final = 128
"""Units of work in the first time slice of a task. One unit is the cost of handling a small frame: a few microseconds.

The first slices of all tasks may run in the same iteration of the loop."""
SLICE_WORK: Final = 1024
"""Units of work in a later time slice. In each iteration of the loop, only one task gets a later slice."""
SHARED_WORK: Final = 256
"""Units of work in a later time slice if other tasks are queued.

Smaller than `SLICE_WORK`, because a short request, such as a produce, may have to wait for several slices."""


class TimeSlice:
    """The time slice of a task: cooperative scheduling on one event loop.

    A task with much work queues for its next slice. Only one queued task runs per iteration of the loop, so tasks with
    little work do not wait for the queue. The length of a slice is a number of units of work, not a time. So it does
    not depend on the machine.

        time_slice.left -= 8
        if time_slice.left <= 0:
            await time_slice.end()
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = FIRST_WORK
        """Units of work left in this slice. If 0 or less, the task must queue (`end`)."""

    def begin(self) -> None:
        """Start a new first slice. A task calls this after it was idle."""
        self.left = FIRST_WORK

    async def end(self) -> None:
        """Queue for the next slice. Tasks that were queued earlier run first."""
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
        """True while a woken task has not resumed yet. When that task resumes, it wakes the next task."""

    async def wait(self) -> None:
        """Wait until it is this task's turn, and wake the next task.

        A task that is cancelled after it was woken must also wake the next task. Otherwise the queue would stop."""
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
    """A signal that wakes all tasks that wait for it. If no task waits, `set` has no effect.

    So a task must check its condition and then call `wait`, without another `await` in between.
    """

    __slots__ = ("_event", "is_muted")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self.is_muted = False
        """If True, `set` does nothing. The owner sets this while it checks for work in another way."""

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
