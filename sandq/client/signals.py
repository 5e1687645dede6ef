"""Waking tasks up, under trio and asyncio alike."""

from __future__ import annotations

import math

import anyio

__all__ = ["Signal"]


class Signal:
    """Wakes every task that waits at that moment; a `set` that finds nobody waiting is forgotten.

    So the waiting task looks at what it waits for, finds nothing and waits, without an await in between.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def set(self) -> None:
        """Wake whoever waits."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self, timeout_s: float = math.inf) -> None:
        """Until the next `set`, or the time is over."""
        if self._event is None:
            self._event = anyio.Event()
        event = self._event
        if timeout_s == math.inf:
            await event.wait()
        else:
            with anyio.move_on_after(max(0.0, timeout_s)):
                await event.wait()
