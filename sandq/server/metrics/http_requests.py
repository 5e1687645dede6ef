"""How many requests of HTTP were answered, and how long they took."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sandq.broker.stats import SECONDS, Histogram
from sandq.server.metrics.text import Exposition

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_COUNTER: Final = "sandq_http_requests_total"
_TIMER: Final = "sandq_http_request_duration_seconds"


class HttpRequests:
    """Those of one process."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered. `route`: its template, of which there are few."""
        method = method if method in METHODS else "other"
        self._counts[method, route, str(status)] += 1
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = Histogram(SECONDS)
        durations.observe(seconds)

    def tell(self, told: Exposition) -> None:
        """For any thread."""
        for request, count in sorted(list(self._counts.items())):
            told.value(_COUNTER, count, told.labels(_COUNTER, *request))
        durations = list(self._durations.items())
        for route, histogram in sorted(durations, key=lambda pair: pair[0]):
            told.histogram(_TIMER, histogram, told.labels(_TIMER, *route))
