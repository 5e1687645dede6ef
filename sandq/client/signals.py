"""Wake up tasks, under trio and asyncio."""

from __future__ import annotations

import math

import anyio

__all__ = ["Signal"]


class Signal:
    """Wakes all tasks that wait when it is set. A `set` without waiting tasks has no effect.

    So a task must check its condition and then wait, without an await in between.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def set(self) -> None:
        """Wake all waiting tasks."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until the next `set`, or until the time is over."""
        if self._event is None:
            self._event = anyio.Event()
        event = self._event
        if timeout_s == math.inf:
            await event.wait()
        else:
            with anyio.move_on_after(max(0.0, timeout_s)):
                await event.wait()
