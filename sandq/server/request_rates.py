"""Enforce the request rate per client of a topic (`max_request_rate`), as counted by this process.

A client is a principal at a source address (an IPv6 network counts as one address). All its connections count together,
so that reconnecting gains nothing. Requests that produce, read or lease messages are counted. Requests that settle
messages or manage the cluster are never throttled.

Each client has a token bucket, stored as one number: the instant at which it will be full. A changed rate begins with a
new bucket: debts from a slow rate do not delay a client once the rate was raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from sandq.model.caller import Caller
from sandq.model.errors import Throttled
from sandq.model.rates import rate_text
from sandq.model.sources import source_of_caller
from sandq.model.topic_limits import MAX_REQUEST_BURST, MAX_REQUEST_RATE_US
from sandq.protocol.frames import Type

CLIENTS: Final = 10_000
"""Maximum number of buckets. Further clients share one bucket per topic."""
SWEEP_S: Final = 1.0
"""Minimum interval between two searches for full buckets, in seconds. A full bucket equals no bucket."""
RATED: Final = frozenset(
    {
        *(Type.PRODUCE, Type.LEASE, Type.FETCH, Type.MEASURE, Type.GET, Type.LIST, Type.WHY, Type.MOVE, Type.CANCEL),
        *(Type.KV_GET, Type.KV_SCAN, Type.KV_WATCH),
        *(Type.SCHEDULE_PUT, Type.SCHEDULE_CHANGE, Type.SCHEDULE_GET, Type.SCHEDULE_LIST),
    }
)
"""Types of requests that are counted. Their first field is the topic."""

_Key = tuple[str, int, str, str]
"""Topic, interval in µs, source, principal. The last two are empty for the shared bucket of a topic."""


class RequestRates:
    """The token buckets of the clients of topics that have a request rate."""

    def __init__(self, clock: Callable[[], float] = trio.current_time, clients: int = CLIENTS) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self._clients = clients
        self._full_at: dict[_Key, float] = {}
        self._swept_at = -math.inf

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._full_at)

    def take(self, topic: str, settings: Mapping[str, Any], caller: Caller, requests: int = 1) -> None:
        """Count `requests` requests of a client about a topic that came together.

        Raise Throttled, and count nothing, if the rate does not admit one now. If one request is admitted, all of them
        are, and later requests wait longer."""
        interval_us = settings.get(MAX_REQUEST_RATE_US)
        if interval_us is None:
            return
        interval_s = interval_us / 1_000_000
        burst = settings.get(MAX_REQUEST_BURST) or max(1_000_000 // interval_us, 1)
        now = self._clock()
        key = self._key(topic, interval_us, caller, now)
        # A full bucket holds `burst` requests. It will be full at `full_at`, and one request costs `interval_s`. So it
        # holds a whole request now if full_at - now is at most (burst - 1) * interval_s.
        full_at = max(self._full_at.get(key, now), now)
        wait_s = full_at - now - (burst - 1) * interval_s
        if wait_s > 1e-9:
            wait_ms = math.ceil(wait_s * 1000)
            raise Throttled(
                f"topic {topic!r} accepts {rate_text(interval_us)} requests per client, {burst} at once "
                f"(max_request_rate): ask again in {wait_ms} ms",
                topic=topic,
                limit="max_request_rate",
                retry_after_ms=wait_ms,
            )
        self._full_at[key] = full_at + requests * interval_s

    def _key(self, topic: str, interval_us: int, caller: Caller, now: float) -> _Key:
        """Return the key of a client's bucket; the key of the topic's shared bucket if there are too many buckets."""
        key = topic, interval_us, source_of_caller(caller), caller.principal
        if key in self._full_at or len(self._full_at) < self._clients:
            return key
        if now >= self._swept_at + SWEEP_S:
            self._swept_at = now
            self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
            if len(self._full_at) < self._clients:
                return key
        return topic, interval_us, "", ""
