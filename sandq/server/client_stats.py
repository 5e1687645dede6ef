"""Counters of the client port: connections, requests by type and result, and their durations."""

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
"""Maximum number of warnings per second about all connections, so that a hostile client cannot fill the disk."""
OTHER = "other"
OURS = frozenset({SandqError.code, StorageFailed.code, Corruption.code, TimedOut.code})
"""Codes of errors that are the node's fault, not the client's."""
_NO_REPLY = frozenset({Type.CREDIT, Type.ON_BEHALF})
_NAMES = {kind.value: kind.name.lower() for kind in Type if kind not in (Type.REPLY, Type.DELIVER, Type.ERROR)}


class Mark(NamedTuple):
    """A request that is not answered yet. Requests that were received together share one mark."""

    durations: Histogram
    """Histogram to which its duration is added."""
    request: str
    """Name of its type."""
    received_s: float
    """Time when it was received, by `time.perf_counter`."""
    size: int
    """Bytes of memory that it holds, estimated."""
    counted: CallerRequests
    """The account in which its bytes are counted."""
    sender: CallerRequests
    """The requests of the caller who sent it."""


class LogLimiter:
    """A rate limiter for log lines: admits `per_s` in each second, and counts the others."""

    def __init__(self, per_s: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._second = -1
        self._admitted = 0
        self._held = 0

    def held_back(self) -> int | None:
        """Return None if this line must be held back. Otherwise, return the number of lines held back since the last
        admitted line."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._admitted = second, 0
        if self._admitted >= self._per_s:
            self._held += 1
            return None
        self._admitted += 1
        held, self._held = self._held, 0
        return held


class OpenConnection(Protocol):
    """The attributes of a connection that metrics read."""

    @property
    def requests(self) -> int:
        """Number of requests that are not answered yet."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""


class ClientStats:
    """The counters of one node. Only the event loop writes them."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.errors: Counter[str] = Counter()
        """Connections that were closed because of a protocol error or an error of this node, by error code."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.open: set[OpenConnection] = set()
        self.durations: dict[str, Histogram] = {}
        """Durations of all requests that were answered, by request type."""
        self.failures: Counter[tuple[str, str]] = Counter()
        """Number of error replies, by request type and error code."""
        self.warnings = LogLimiter(LOGGED_PER_S)

    def mark(self, kind: int, at: float, size: int, counted: CallerRequests, sender: CallerRequests) -> Mark | None:
        """Return the mark of a request that came at `at`; None if requests of its type get no reply."""
        if kind in _NO_REPLY:
            return None
        name = _NAMES.get(kind, OTHER)
        durations = self.durations.get(name)
        if durations is None:
            durations = self.durations[name] = Histogram(SECONDS)
        return Mark(durations, name, at, size, counted, sender)
