"""What the client port counts: connections, requests by type and result, how long they took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from sandq.broker.stats.histogram import SECONDS, Histogram
from sandq.model.errors import Corruption, SandqError, StorageFailed, TimedOut
from sandq.protocol.frames import Type
from sandq.server.caller_requests import CallerRequests

LOGGED_PER_S = 10
"""Warnings about what clients did or met, over all connections; a hostile one cannot fill the disk with them."""
OTHER = "other"
OURS = frozenset({SandqError.code, StorageFailed.code, Corruption.code, TimedOut.code})
"""Errors that are no doing of the client."""
_NO_REPLY = frozenset({Type.CREDIT, Type.ON_BEHALF})
_NAMES = {kind.value: kind.name.lower() for kind in Type if kind not in (Type.REPLY, Type.DELIVER, Type.ERROR)}


class Mark(NamedTuple):
    """A request that is not answered yet. Requests that came together share one."""

    durations: Histogram
    """Where its duration goes."""
    request: str
    """The name of its type."""
    came_s: float
    """When it came, by `time.perf_counter`."""
    size: int
    """The bytes that it takes."""
    counted: CallerRequests
    """Where its bytes count."""
    asks: CallerRequests
    """Those of the caller who asks."""


class Seldom:
    """Lets `per_s` through in each second, and says of the next one how many were held back."""

    def __init__(self, per_s: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._second = -1
        self._let = 0
        self._held = 0

    def held_back(self) -> int | None:
        """None: hold this one back, too. Else how many were since the last."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._let = second, 0
        if self._let >= self._per_s:
            self._held += 1
            return None
        self._let += 1
        held, self._held = self._held, 0
        return held


class OpenConnection(Protocol):
    """What metrics read of a connection."""

    @property
    def requests(self) -> int:
        """Requests under way."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""


class ClientStats:
    """Of one node; the event loop writes."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.errors: Counter[str] = Counter()
        """Of connections that were closed because of what was said on them, or by an error of ours: by code."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.open: set[OpenConnection] = set()
        self.durations: dict[str, Histogram] = {}
        """By type of request: of all that were answered."""
        self.failures: Counter[tuple[str, str]] = Counter()
        """By type and error code."""
        self.warnings = Seldom(LOGGED_PER_S)

    def mark(self, kind: int, at: float, size: int, counted: CallerRequests, asks: CallerRequests) -> Mark | None:
        """For a request that came now; None: it gets no answer."""
        if kind in _NO_REPLY:
            return None
        name = _NAMES.get(kind, OTHER)
        durations = self.durations.get(name)
        if durations is None:
            durations = self.durations[name] = Histogram(SECONDS)
        return Mark(durations, name, at, size, counted, asks)
