"""Sends what has gathered for the clients: one task for all of them."""

from __future__ import annotations

from typing import Protocol

import trio


class Flushed(Protocol):
    """Somebody who has something to send."""

    def flush(self) -> None:
        """Send it, without waiting. Must not raise."""
        ...


class Sender:
    """Those that were added since its last turn get to send: what is answered in the same moment goes out together."""

    def __init__(self) -> None:
        self._due: list[Flushed] = []
        self._wake = trio.Event()

    def add(self, sending: Flushed) -> None:
        if not self._due:
            self._wake.set()
        self._due.append(sending)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            due, self._due = self._due, []
            self._wake = trio.Event()
            for sending in due:
                sending.flush()
