"""Planned tasks, by the instant of the core's clock at which they are due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final


class Task:
    """A task that is run once, unless it is cancelled before."""

    __slots__ = ("_do", "at")

    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at = at
        self._do: Callable[[], None] | None = do

    def cancel(self) -> None:
        self._do = None

    @property
    def is_cancelled(self) -> bool:
        return self._do is None

    def take(self) -> Callable[[], None] | None:
        """Return the function to call, or None if the task was cancelled or taken before."""
        do, self._do = self._do, None
        return do


SWEEP_TASKS: Final = 1024
"""Number of planned tasks above which cancelled ones are removed."""


class Agenda:
    """A queue of tasks. `now`: the core's clock in seconds, which all planners read."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Task]] = []
        self._count = 0
        self._sweep_at = SWEEP_TASKS

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float | None:
        """The instant of the next task, which may be cancelled; None if no task is planned."""
        return self._heap[0][0] if self._heap else None

    def after(self, delay_s: float, do: Callable[[], None]) -> Task:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        task = Task(self.now + delay_s, do)
        self._count += 1
        heapq.heappush(self._heap, (task.at, self._count, task))
        return task

    def _sweep(self) -> None:
        """Remove cancelled tasks: a task may be planned a day ahead and cancelled again and again."""
        self._heap = [entry for entry in self._heap if not entry[2].is_cancelled]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP_TASKS, 2 * len(self._heap))

    def advance(self, now: float) -> None:
        """Set the clock forward without running any tasks."""
        self.now = max(self.now, now)

    def run(self, now: float) -> None:
        """Run all due tasks in order. A task that is planned meanwhile waits for the next call, even if it is due."""
        self.advance(now)
        due = []
        while self._heap and self._heap[0][0] <= self.now:
            due.append(heapq.heappop(self._heap)[2])
        for task in due:
            do = task.take()
            if do is not None:
                do()
