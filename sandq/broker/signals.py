"""Wake tasks of the loop that wait for something to happen."""

from __future__ import annotations

import trio


class Signal:
    """Wakes every task that waits at that moment; a `set` that finds nobody waiting is forgotten.

    So the waiting task looks at what it waits for, finds nothing and waits, without an await in between.
    """

    __slots__ = ("_event", "is_muted")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self.is_muted = False
        """A `set` is forgotten even so: what it tells of is looked at otherwise."""

    def set(self) -> None:
        """Wake whoever waits."""
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
