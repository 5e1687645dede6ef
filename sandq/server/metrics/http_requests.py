"""What a node counts of HTTP: requests, their durations, and restarts of the process that serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from sandq.broker.stats.histogram import SECONDS, Histogram
from sandq.server.metrics.text import Exposition

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_COUNTER: Final = "sandq_http_requests_total"
_TIMER: Final = "sandq_http_request_duration_seconds"
_RESTARTS: Final = "sandq_http_process_restarts_total"

Why = Literal["not_started", "ended", "killed", "hung"]
"""Why an HTTP process had to be started again.

`not_started`: it could not be launched. `ended`: it ended by itself. `killed`: a signal ended it. `hung`: the node
killed it because it did not answer, or did not speak the protocol between both.
"""


class HttpRequests:
    """Those of one process, or of all that a node had for them."""

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

    def take(self) -> dict[str, Any]:
        """What was counted since it was taken last, as an object of JSON; here it begins anew."""
        counts, durations = self._counts, self._durations
        self._counts, self._durations = Counter(), {}
        return {
            "counts": [[*request, count] for request, count in counts.items()],
            "durations": [[*route, found.counts, found.total] for route, found in durations.items()],
        }

    def add(self, taken: Mapping[str, Any]) -> None:
        """Count also what another one has counted. Raises ValueError, KeyError, TypeError: it is no such thing."""
        for method, route, status, count in taken["counts"]:
            self._counts[method, route, status] += count
        for method, route, counts, total in taken["durations"]:
            more = Histogram(SECONDS)
            more.counts, more.total = counts, total
            self._durations.setdefault((method, route), Histogram(SECONDS)).add(more)

    def tell(self, told: Exposition) -> None:
        """For any thread."""
        for request, count in sorted(list(self._counts.items())):
            told.value(_COUNTER, count, told.labels(_COUNTER, *request))
        durations = list(self._durations.items())
        for route, histogram in sorted(durations, key=lambda pair: pair[0]):
            told.histogram(_TIMER, histogram, told.labels(_TIMER, *route))


class HttpProcess:
    """What a node knows of its HTTP process."""

    def __init__(self) -> None:
        self.requests = HttpRequests()
        """Requests that all its processes answered."""
        self.restarts: Counter[Why] = Counter()
        self.down: str | None = None
        """Why HTTP is not served; None: it is served, or the first process is starting."""
        self.held_bytes = 0
        """Bytes that requests hold in the process, as it last reported."""

    def tell(self, told: Exposition) -> None:
        """Write the metrics of HTTP. May be called in any thread."""
        self.requests.tell(told)
        for why in get_args(Why):
            told.value(_RESTARTS, self.restarts[why], told.labels(_RESTARTS, why))
