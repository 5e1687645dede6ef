"""One task drives every timer of a node: a heap of instants on the guarded clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

from sandq.broker.clock.guarded_clock import GuardedClock

LONGEST_SLEEP_S = 1.0
"""The guarded clock is slewed while we sleep, and the machine may be."""


class Timers:
    def __init__(self, clock: GuardedClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._wake = trio.Event()
        self._sleeping_until_ms: float = math.inf
        clock.listen(on_step=self._look_again)

    def at(self, at_ms: int, call: Callable[[], None]) -> None:
        """Call once the guarded clock has reached `at_ms`. Timers cannot be taken back: `call` looks again whether
        there is something to do."""
        heapq.heappush(self._heap, (at_ms, next(self._order), call))
        if at_ms < self._sleeping_until_ms:
            self._wake.set()

    def _look_again(self) -> None:
        self._wake.set()

    def pause_ms(self, ms: int) -> int:
        """How long to pause before more of some work that no message waits for."""
        return ms

    async def run(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            while self._heap and self._heap[0][0] <= now_ms:
                heapq.heappop(self._heap)[2]()
            self._wake = trio.Event()
            self._sleeping_until_ms = self._heap[0][0] if self._heap else math.inf
            seconds = LONGEST_SLEEP_S
            if self._heap:
                seconds = min(seconds, self._clock.seconds_until(self._heap[0][0]))
            with trio.move_on_after(seconds):
                await self._wake.wait()
            self._sleeping_until_ms = 0
