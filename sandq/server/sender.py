"""Sends what has gathered for the clients: one task for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        self._is_gathering = False
        self._wake = trio.Event()

    def add(self, sending: Flushed) -> None:
        if not self._due and not self._is_gathering:
            self._wake.set()
        self._due.append(sending)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Inside nobody gets to send, at its end all that were added do: not a turn of the loop later."""
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
            self._flush()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._flush()

    def _flush(self) -> None:
        due, self._due = self._due, []
        for sending in due:
            sending.flush()
