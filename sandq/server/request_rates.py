"""Requests a second that each client may send about a topic (`max_request_rate`), as this process counts them.

A client is the machine that requests come from (an IPv6 network counts as one), and who asks there: its connections are
counted together, so that nobody gets more by connecting again. What is counted produces, reads or takes messages; what
settles them, and what runs the cluster, never waits for a rate.

Each client has a token bucket, written as one number: the instant at which it will be full. Under another rate it has
another one: what was asked at a slow rate does not have it wait once that was raised.
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
"""Clients, of all topics, that have a bucket of their own; further ones share one of each topic."""
LOOK_S: Final = 1.0
"""It is looked so often, at most, whose buckets are full: these say no more than none does."""
RATED: Final = frozenset(
    {
        *(Type.PRODUCE, Type.LEASE, Type.FETCH, Type.MEASURE, Type.GET, Type.LIST, Type.WHY, Type.MOVE, Type.CANCEL),
        *(Type.KV_GET, Type.KV_SCAN, Type.KV_WATCH),
        *(Type.SCHEDULE_PUT, Type.SCHEDULE_CHANGE, Type.SCHEDULE_GET, Type.SCHEDULE_LIST),
    }
)
"""Requests that are counted. Their topic is their first field."""

_Key = tuple[str, int, str, str]
"""Topic, rate, source, principal; of those that share one, the topic and its rate alone."""


class RequestRates:
    """What every client has asked lately of topics that have a rate."""

    def __init__(self, clock: Callable[[], float] = trio.current_time, clients: int = CLIENTS) -> None:
        """`clock`: monotonic, in seconds."""
        self._clock = clock
        self._clients = clients
        self._full_at: dict[_Key, float] = {}
        self._looked_at = -math.inf

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._full_at)

    def take(self, topic: str, settings: Mapping[str, Any], caller: Caller, requests: int = 1) -> None:
        """Count requests of a client about a topic with these settings. Raises Throttled when its rate does not allow
        one now: nothing is counted then. Several that came together are let through together, and those that follow
        wait the longer."""
        interval_us = settings.get(MAX_REQUEST_RATE_US)
        if interval_us is None:
            return
        interval_s = interval_us / 1_000_000
        burst = settings.get(MAX_REQUEST_BURST) or max(1_000_000 // interval_us, 1)
        now = self._clock()
        key = self._key(topic, interval_us, caller, now)
        full_at = max(self._full_at.get(key, now), now)
        wait_s = full_at - now - (burst - 1) * interval_s
        if wait_s > 1e-9:
            wait_ms = math.ceil(wait_s * 1000)
            raise Throttled(
                f"topic {topic!r} takes {rate_text(interval_us)} requests of a client, {burst} at once "
                f"(max_request_rate): ask again in {wait_ms} ms",
                topic=topic,
                limit="max_request_rate",
                retry_after_ms=wait_ms,
            )
        self._full_at[key] = full_at + requests * interval_s

    def _key(self, topic: str, interval_us: int, caller: Caller, now: float) -> _Key:
        key = topic, interval_us, source_of_caller(caller), caller.principal
        if key in self._full_at or len(self._full_at) < self._clients:
            return key
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
            if len(self._full_at) < self._clients:
                return key
        return topic, interval_us, "", ""
