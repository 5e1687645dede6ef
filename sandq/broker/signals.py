"""Wake tasks of the loop: one that has work to do, or all that wait for a change."""

from __future__ import annotations

import trio


class Wakeup:
    """For one task that sleeps while there is nothing to do. It looks for work, finds none and waits, without an await
    in between; a `set` before that costs next to nothing."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the task that waits, if it does."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the next `set`."""
        self._event = trio.Event()
        await self._event.wait()


class Change:
    """For any number of tasks that look at something, and wait until it may be different."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Wake every task that waits at this moment."""
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Wait until the next `notify`."""
        await self._event.wait()
