"""What is to be done at which instant of the core's clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final


class Task:
    """Something to be done once; `cancel` and it is not."""

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
        """What is to be done, once; None when it was cancelled."""
        do, self._do = self._do, None
        return do


SWEEP_TASKS: Final = 1024
"""So many tasks may lie here before those that were cancelled are looked for."""


class Agenda:
    """`now`: of the core's clock, in seconds; read by all who plan."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Task]] = []
        self._count = 0
        self._sweep_at = SWEEP_TASKS

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float | None:
        """When there is something to do; may be of a task that was cancelled."""
        return self._heap[0][0] if self._heap else None

    def after(self, delay_s: float, do: Callable[[], None]) -> Task:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        task = Task(self.now + delay_s, do)
        self._count += 1
        heapq.heappush(self._heap, (task.at, self._count, task))
        return task

    def _sweep(self) -> None:
        """Who is planned and cancelled again and again, a day ahead each time, must not fill the memory."""
        self._heap = [entry for entry in self._heap if not entry[2].is_cancelled]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP_TASKS, 2 * len(self._heap))

    def advance(self, now: float) -> None:
        """It is later; nothing is done yet."""
        self.now = max(self.now, now)

    def run(self, now: float) -> None:
        """Do what is due, in order. What is planned meanwhile and due as well is left for the next time."""
        self.advance(now)
        due = []
        while self._heap and self._heap[0][0] <= self.now:
            due.append(heapq.heappop(self._heap)[2])
        for task in due:
            do = task.take()
            if do is not None:
                do()
