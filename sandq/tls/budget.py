"""Limit the CPU time of handshakes: to a share of one core in total, and to half of that per source address.

A handshake costs a node about 200 us of CPU (2 ms with an RSA key), but costs an attacker nothing. With this limit, the
handshakes of a source that starts many of them wait for each other, and do not delay handshakes of other sources. Each
limit is a token bucket of CPU seconds:

    queue of a source --one at a time--> queue of all --when the bucket is not empty--> a step, whose time is counted
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from sandq.model.errors import Overloaded

SHARE: Final = 0.25
"""Share of one core for all handshakes."""
SOURCE_SHARE: Final = 0.5
"""Maximum part of `SHARE` that one source may use."""
BURST_S: Final = 0.5
"""Size of the bucket: CPU time in s that is available at once after an idle period."""
LEAST_WAIT_S: Final = 0.0005
"""Shortest sleep while a bucket refills, in s."""
HANDSHAKE_S: Final = 10.0
"""Timeout of a handshake in s, including the time in the queues."""
HANDSHAKES: Final = 512
"""Maximum number of handshakes in progress at the same time."""
SOURCE_HANDSHAKES: Final = 128
"""Maximum number of handshakes of one source in progress at the same time.

At either limit, a new handshake replaces the handshake whose peer has been silent for longest. If no peer is silent,
the new handshake is rejected."""


_TOO_MANY: Final = "too many TLS handshakes are under way: try again in a moment"


class _Source:
    """The handshakes of one source. Only one of them at a time waits in the common queue."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.in_progress = 0
        self.bucket = _Bucket(SHARE * SOURCE_SHARE)


class _Bucket:
    """A token bucket of CPU time in s. One step may bring it below zero; it must then refill before the next step."""

    def __init__(self, share: float) -> None:
        """`share`: part of one CPU. The maximum burst is `BURST_S * share / SHARE` seconds."""
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
        """True if earlier use no longer has an effect."""
        self._flow()
        return self._left_s >= self._most_s

    async def wait(self) -> None:
        """Wait until the bucket is not below zero."""
        self._flow()
        while self._left_s < 0:
            await anyio.sleep(max(-self._left_s / self._share, LEAST_WAIT_S))
            self._flow()


class Handshakes:
    """The handshakes of one or several ports."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._bucket = _Bucket(SHARE)
        self._sources: dict[str, _Source] = {}
        self._silent: dict[anyio.CancelScope, str] = {}
        """By cancel scope: source of each handshake that waits for its peer. The longest silent handshake is first."""
        self.in_progress = 0
        self.done = 0
        self.failed = 0
        self.refused = 0
        self.cpu_s = 0.0

    @asynccontextmanager
    async def slot(self, source: str) -> AsyncIterator[anyio.CancelScope]:
        """Hold a slot for a handshake. Yield its cancel scope, which the handshake passes to `wait_for_step`.

        Raise Overloaded immediately if too many handshakes are in progress, or later if this handshake is cancelled in
        favour of a newer one."""
        entry = self._sources.setdefault(source, _Source())
        is_full = entry.in_progress >= SOURCE_HANDSHAKES
        if (is_full or self.in_progress >= HANDSHAKES) and not self._end_silent(source if is_full else None):
            self.refused += 1
            self._forget(source, entry)
            raise Overloaded(_TOO_MANY)
        self.in_progress += 1
        entry.in_progress += 1
        with anyio.CancelScope() as scope:
            self._silent[scope] = source
            try:
                yield scope
            finally:
                self._silent.pop(scope, None)
                self.in_progress -= 1
                entry.in_progress -= 1
                self._forget(source, entry)
        if scope.cancelled_caught:
            self.refused += 1
            raise Overloaded(_TOO_MANY)

    def _end_silent(self, of: str | None) -> bool:
        """Cancel the longest silent handshake of a source (None: of all sources). Return False if no handshake is
        silent."""
        for scope, source in self._silent.items():
            if of is None or of == source:
                del self._silent[scope]
                scope.cancel()
                return True
        return False

    def _forget(self, source: str, entry: _Source) -> None:
        if not entry.in_progress and entry.bucket.is_full:
            self._sources.pop(source, None)
        if len(self._sources) > HANDSHAKES * 2:  # forget idle sources whose used CPU time no longer counts
            for other in [name for name, one in self._sources.items() if not one.in_progress and one.bucket.is_full]:
                del self._sources[other]

    async def wait_for_step(self, source: str, scope: anyio.CancelScope | None = None) -> None:
        """Wait until a handshake may do its next step. The caller must do the step before it awaits anything else.

        `scope`: the scope from `slot`, which is cancelled if the peer stays silent. None: never cancel the
        handshake."""
        entry = self._sources.setdefault(source, _Source())
        if scope is not None:
            self._silent.pop(scope, None)
        try:
            async with entry.lock:
                await entry.bucket.wait()
                async with self._lock:
                    await self._bucket.wait()
        finally:
            if scope is not None:
                self._silent[scope] = source

    def spent(self, source: str, seconds: float) -> None:
        """Count the CPU time of a step, in s."""
        self.cpu_s += seconds
        self._bucket.spend(seconds)
        if (entry := self._sources.get(source)) is not None:
            entry.bucket.spend(seconds)
