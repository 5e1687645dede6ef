"""So many a second: when each of a row of messages is meant to be sent, and waiting for it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

TICK_S = 0.01
"""Messages that are meant for the same tick are sent together; nobody sleeps more precisely than this."""


class Pacer:
    """`await pacer.wait()` before each message; it returns when the message was meant to be sent (monotonic seconds).

    The n-th is meant for n / rate seconds after the first, so that no delay adds up. Who comes late (the server was
    slow, the machine busy) either catches up at once, or, with `slip`, is late from then on: then never more than a
    tick's messages are sent in one go.
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
        """Until the next may be sent; `messages`: how many are sent together."""
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
        """When to wake: with more messages than ticks, at the end of the tick that it lies in."""
        assert self._start is not None
        if self._rate * TICK_S <= 1:
            return intended
        return self._start + math.ceil((intended - self._start) / TICK_S) * TICK_S
