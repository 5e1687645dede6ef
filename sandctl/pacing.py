"""Pace messages at a rate: compute the time of each message, and wait for it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

TICK_S = 0.01
"""Length of a tick, in s. Messages of one tick are sent together, because sleeping for a shorter time is not
precise."""


class Pacer:
    """Paces messages: call `await pacer.wait()` before each message. `wait` returns the planned time of the message
    (monotonic seconds).

    Message number n (from 0) is planned for n / rate seconds after the first, so delays do not add up. Without `slip`,
    a late sender (slow server, busy machine) sends all late messages at once. With `slip`, the plan is shifted instead,
    so that the sender never sends more than one tick's messages at a time.
    """

    def __init__(
        self,
        rate: float,
        *,
        slip: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        if sleep is None:
            import anyio

            sleep = anyio.sleep
        self._rate = rate
        self._slip = slip
        self._clock = clock
        self._sleep = sleep
        self._start: float | None = None
        self._count = 0

    async def wait(self, messages: int = 1) -> float:
        """Wait until the next batch may be sent. `messages`: its number of messages."""
        now = self._clock()
        if self._start is None:
            self._start = now
        intended = self._start + self._count / self._rate
        if self._slip and now - intended > TICK_S:
            self._start += now - intended - TICK_S
            intended = now - TICK_S
        self._count += messages
        if intended > now:
            await self._sleep(self._until(intended) - now)
        return intended

    def _until(self, intended: float) -> float:
        """Return until when to sleep for a message planned at `intended`.

        With several messages per tick, this is the end of the tick."""
        assert self._start is not None
        if self._rate * TICK_S <= 1:
            return intended
        return self._start + math.ceil((intended - self._start) / TICK_S) * TICK_S
