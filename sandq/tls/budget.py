"""What handshakes may cost: a part of one core for all of them, and half of that for one source.

A handshake costs a node some 200 us of CPU (2 ms with an RSA key), and a stranger nothing: those who ask for many wait
for each other, and nobody else for them.

    a source's line --one at a time--> the line of all --when there is something left--> its step, which is counted
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from sandq.model.errors import Overloaded

SHARE: Final = 0.25
"""Of a core."""
SOURCE_SHARE: Final = 0.5
"""Of what there is, one source has no more."""
BURST_S: Final = 0.5
"""So much CPU time may be spent at once after a pause."""
LEAST_WAIT_S: Final = 0.0005
HANDSHAKE_S: Final = 10.0
"""A handshake is done by then, in seconds; the time that it waits for others is counted."""
HANDSHAKES: Final = 512
"""Under way at a time ..."""
SOURCE_HANDSHAKES: Final = 128
"""... and those of one source; beyond that who has been silent for longest is closed, or who comes when nobody is."""


_TOO_MANY: Final = "too many TLS handshakes are under way: try again in a moment"


class _Line:
    """Those of one source: one of them at a time waits with those of others."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.under_way = 0
        self.bucket = _Bucket(SHARE * SOURCE_SHARE)


class _Bucket:
    """CPU time that may be spent, in seconds; what was spent beyond it must flow in first."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_s = BURST_S * share / SHARE
        self._most_s = self._left_s
        self._at_s: float | None = None

    def _flow(self) -> None:
        now_s = anyio.current_time()
        if self._at_s is not None:
            self._left_s = min(self._most_s, self._left_s + (now_s - self._at_s) * self._share)
        self._at_s = now_s

    def spend(self, seconds: float) -> None:
        self._flow()
        self._left_s -= seconds

    @property
    def is_full(self) -> bool:
        """Whether nothing is remembered that counts."""
        self._flow()
        return self._left_s >= self._most_s

    async def wait(self) -> None:
        """Until something is left."""
        self._flow()
        while self._left_s < 0:
            await anyio.sleep(max(-self._left_s / self._share, LEAST_WAIT_S))
            self._flow()


class Handshakes:
    """The handshakes of a port, or of several."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._bucket = _Bucket(SHARE)
        self._lines: dict[str, _Line] = {}
        self._silent: dict[anyio.CancelScope, str] = {}
        """Who is waited for to say something, and their sources; the one who has been for longest first."""
        self.under_way = 0
        self.done = 0
        self.failed = 0
        self.refused = 0
        self.cpu_s = 0.0

    @asynccontextmanager
    async def place(self, source: str) -> AsyncIterator[anyio.CancelScope]:
        """For a handshake, which is to name it for its turns. Raises Overloaded when too many are under way: at once,
        or when it is ended for another one."""
        line = self._lines.setdefault(source, _Line())
        is_full = line.under_way >= SOURCE_HANDSHAKES
        if (is_full or self.under_way >= HANDSHAKES) and not self._end_silent(source if is_full else None):
            self.refused += 1
            self._forget(source, line)
            raise Overloaded(_TOO_MANY)
        self.under_way += 1
        line.under_way += 1
        with anyio.CancelScope() as scope:
            self._silent[scope] = source
            try:
                yield scope
            finally:
                self._silent.pop(scope, None)
                self.under_way -= 1
                line.under_way -= 1
                self._forget(source, line)
        if scope.cancelled_caught:
            self.refused += 1
            raise Overloaded(_TOO_MANY)

    def _end_silent(self, of: str | None) -> bool:
        """End who has been silent for longest, of a source or of all; whether there is one."""
        for scope, source in self._silent.items():
            if of is None or of == source:
                del self._silent[scope]
                scope.cancel()
                return True
        return False

    def _forget(self, source: str, line: _Line) -> None:
        if not line.under_way and line.bucket.is_full:
            self._lines.pop(source, None)
        if len(self._lines) > HANDSHAKES * 2:  # of who has gone, and has spent something
            for other in [name for name, one in self._lines.items() if not one.under_way and one.bucket.is_full]:
                del self._lines[other]

    async def turn(self, source: str, place: anyio.CancelScope | None = None) -> None:
        """Wait until a step of a handshake may be done, which is done before anything else is awaited. `place`: its
        own, where one may be ended who is silent."""
        line = self._lines.setdefault(source, _Line())
        if place is not None:
            self._silent.pop(place, None)
        try:
            async with line.lock:
                await line.bucket.wait()
                async with self._lock:
                    await self._bucket.wait()
        finally:
            if place is not None:
                self._silent[place] = source

    def spent(self, source: str, seconds: float) -> None:
        """So much CPU time was spent on a step."""
        self.cpu_s += seconds
        self._bucket.spend(seconds)
        if (line := self._lines.get(source)) is not None:
            line.bucket.spend(seconds)
