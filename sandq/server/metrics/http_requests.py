"""Count HTTP requests, their durations, and restarts of the process that serves them."""

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
"""Why an HTTP process had to be restarted.

`not_started`: it could not be launched. `ended`: it ended by itself. `killed`: a signal ended it. `hung`: the node
killed it because it did not answer, or did not follow their protocol.
"""


class HttpRequests:
    """Counts of one process, or sums over all processes of a node."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route`: the template of its path, of which there are few."""
        method = method if method in METHODS else "other"
        self._counts[method, route, str(status)] += 1
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = Histogram(SECONDS)
        durations.observe(seconds)

    def take(self) -> dict[str, Any]:
        """Return the counts since the last call as a JSON object, and reset them."""
        counts, durations = self._counts, self._durations
        self._counts, self._durations = Counter(), {}
        return {
            "counts": [[*request, count] for request, count in counts.items()],
            "durations": [[*route, found.counts, found.total] for route, found in durations.items()],
        }

    def add(self, taken: Mapping[str, Any]) -> None:
        """Add counts that `take` of another process returned. Raise ValueError, KeyError or TypeError if malformed."""
        for method, route, status, count in taken["counts"]:
            self._counts[method, route, status] += count
        for method, route, counts, total in taken["durations"]:
            more = Histogram(SECONDS)
            more.counts, more.total = counts, total
            self._durations.setdefault((method, route), Histogram(SECONDS)).add(more)

    def write(self, out: Exposition) -> None:
        """Write the metrics. Any thread may call it."""
        for request, count in sorted(list(self._counts.items())):
            out.value(_COUNTER, count, out.labels(_COUNTER, *request))
        durations = list(self._durations.items())
        for route, histogram in sorted(durations, key=lambda pair: pair[0]):
            out.histogram(_TIMER, histogram, out.labels(_TIMER, *route))


class HttpProcess:
    """The state of a node's HTTP process."""

    def __init__(self) -> None:
        self.requests = HttpRequests()
        """Requests answered by all HTTP processes of the node."""
        self.restarts: Counter[Why] = Counter()
        self.down: str | None = None
        """Why HTTP is not served; None if it is served, or the first process is starting."""
        self.held_bytes = 0
        """Bytes that requests hold in the process, as last reported."""

    def write(self, out: Exposition) -> None:
        """Write the metrics of HTTP. Any thread may call it."""
        self.requests.write(out)
        for why in get_args(Why):
            out.value(_RESTARTS, self.restarts[why], out.labels(_RESTARTS, why))
