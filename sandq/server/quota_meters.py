"""Enforce the quotas of identities in this process: requests and bytes per second, and open connections.

Each identity has two token buckets, for requests and for bytes, which hold the amount of one second. A bucket is one
number: the instant at which it will be full. Requests that settle messages are counted, but never refused: a consumer
that could not ack would get the same messages again. Such requests can empty a bucket, but leave no debt: a consumer
that settles all the time can still send other requests soon. A refused request is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from sandq.model.errors import QuotaExceeded
from sandq.model.limits import FIXED
from sandq.model.quotas import Quota
from sandq.protocol.frames import Type

NEVER_REFUSED: Final = frozenset(
    {
        *(Type.ACK, Type.ACK_THEN, Type.NACK, Type.EXTEND, Type.UNSUBSCRIBE),
        *(Type.CREDIT, Type.PING, Type.ON_BEHALF, Type.PROVE, Type.IDENTIFY),
    }
)
"""Requests that settle messages or keep the connection alive; they may exceed the quota."""
NOT_COUNTED: Final = frozenset({Type.PING, Type.CREDIT, Type.ON_BEHALF, Type.PROVE})
CONNECT_AGAIN_MS: Final = 1000
_LEAST_S: Final = 1e-9


class Meter:
    """Usage and open connections of one identity in this process."""

    __slots__ = ("bytes", "bytes_full_at", "connections", "rates", "refused", "requests", "requests_full_at", "taken")

    def __init__(self) -> None:
        self.requests = self.bytes = self.refused = self.connections = 0
        self.requests_full_at = self.bytes_full_at = 0.0
        self.rates: tuple[int | None, int | None] = (None, None)
        """Rates for which the buckets were filled. When the quota changes, they begin full."""
        self.taken = (0, 0, 0)
        """Totals of requests, bytes and refusals at the last `take_counts`."""


class QuotaMeters:
    """The meters of one process: one for each identity that has a quota."""

    def __init__(self, clock: Callable[[], float] = trio.current_time, most: int = FIXED.identities) -> None:
        """`clock`: monotonic, in seconds. `most`: if there are this many meters, meters with full buckets are dropped
        before a new meter is added."""
        self._clock = clock
        self._most = most
        self.meters: dict[str, Meter] = {}
        """The meter of each principal."""

    def take(
        self,
        principal: str,
        quota: Quota,
        requests: int,
        size: int,
        *,
        is_free: bool = False,
        carries: bool = True,
    ) -> None:
        """Count `requests` requests that came together, of `size` bytes in all. Raise QuotaExceeded, and count nothing,
        if the quota does not admit one more now.

        If one request is admitted, all of them are, and later requests wait longer. `is_free`: never refuse, and take
        at most the content of the bucket. `carries`: the request carries messages, so its bytes are charged in full
        even if `is_free` is set."""
        per_s, bytes_per_s = quota.requests_per_s, quota.bytes_per_s
        meter = self._meter(principal)
        if per_s is None and bytes_per_s is None:
            meter.requests += requests
            meter.bytes += size
            return
        now = self._clock()
        if meter.rates != (per_s, bytes_per_s):
            meter.rates = per_s, bytes_per_s
            meter.requests_full_at = meter.bytes_full_at = now
        if not is_free:
            # A full bucket holds one second of its rate; now it holds 1 - (full_at - now) seconds. One request, or one
            # byte, costs 1 / rate seconds. A bucket admits a request if it holds one, and bytes if it holds any.
            if per_s is not None:
                wait_s = math.inf if not per_s else meter.requests_full_at - now - 1 + 1 / per_s
                self._check(meter, principal, "requests_per_s", per_s, wait_s)
            if bytes_per_s is not None:
                wait_s = math.inf if not bytes_per_s else meter.bytes_full_at - now - 1 + 1 / bytes_per_s
                self._check(meter, principal, "bytes_per_s", bytes_per_s, wait_s)
        if per_s:
            meter.requests_full_at = _charged(meter.requests_full_at, now, requests / per_s, is_free)
        if bytes_per_s:
            meter.bytes_full_at = _charged(meter.bytes_full_at, now, size / bytes_per_s, is_free and not carries)
        meter.requests += requests
        meter.bytes += size

    def admits(self, principal: str, quota: Quota, requests: int) -> bool:
        """Return whether the quota admits this number of requests now. Bytes are not checked."""
        per_s = quota.requests_per_s
        if per_s is None:
            return True
        meter, now = self._meter(principal), self._clock()
        full_at = meter.requests_full_at if meter.rates == (per_s, quota.bytes_per_s) else now
        return bool(per_s) and max(full_at, now) - now - 1 + requests / per_s <= _LEAST_S

    def owe(self, principal: str, quota: Quota, size: int) -> None:
        """Charge bytes of an admitted request that turned out to be larger: later requests wait for them."""
        meter, bytes_per_s = self._meter(principal), quota.bytes_per_s
        meter.bytes += size
        if bytes_per_s and meter.rates == (quota.requests_per_s, bytes_per_s):
            meter.bytes_full_at = _charged(meter.bytes_full_at, self._clock(), size / bytes_per_s, False)

    def _check(self, meter: Meter, principal: str, name: str, most: int, wait_s: float) -> None:
        """Raise QuotaExceeded if a bucket admits nothing for `wait_s` seconds. `name`: the quota; `most`: its value."""
        if wait_s <= _LEAST_S:
            return
        meter.refused += 1
        details: dict[str, object] = {"quota": name, "maximum": most, "principal": principal}
        again = "it may send none here"
        if wait_s < math.inf:
            details["retry_after_ms"] = math.ceil(wait_s * 1000)
            again = f"ask again in {details['retry_after_ms']} ms"
        raise QuotaExceeded(f"{principal} has used all that its quota allows, {most:,} ({name}): {again}", **details)

    def connect(self, principal: str, quota: Quota) -> None:
        """Count one more connection, until `disconnect`. Raises QuotaExceeded."""
        meter, most = self._meter(principal), quota.connections
        if most is not None and meter.connections >= most:
            meter.refused += 1
            raise QuotaExceeded(
                f"{principal} has {meter.connections} connections here, and its quota is {most} (connections): close "
                "one, or ask an operator to raise the quota",
                quota="connections",
                maximum=most,
                principal=principal,
                retry_after_ms=CONNECT_AGAIN_MS,
            )
        meter.connections += 1

    def disconnect(self, principal: str) -> None:
        """Count one connection less."""
        self.meters[principal].connections -= 1

    @contextmanager
    def connected(self, principal: str, quota: Quota) -> Iterator[None]:
        """Count a connection inside the block. Raises QuotaExceeded."""
        self.connect(principal, quota)
        try:
            yield
        finally:
            self.disconnect(principal)

    def take_counts(self) -> list[list[str | int]]:
        """Return the counts since the last call, as JSON: `[principal, requests, bytes, refused]` for each identity."""
        counts: list[list[str | int]] = []
        for principal, meter in self.meters.items():
            now, taken = (meter.requests, meter.bytes, meter.refused), meter.taken
            if now != taken:
                counts.append([principal, *(new - old for new, old in zip(now, taken, strict=True))])
                meter.taken = now
        return counts

    def add_counts(self, counts: Iterable[Sequence[Any]]) -> None:
        """Add counts that `take_counts` of another process returned. These counts do not affect the buckets.

        Raise ValueError or TypeError if they are malformed.
        """
        for principal, requests, size, refused in counts:
            meter = self._meter(principal)
            meter.requests += requests
            meter.bytes += size
            meter.refused += refused

    def _meter(self, principal: str) -> Meter:
        """Return the meter of a principal; create it with full buckets if there is none."""
        meter = self.meters.get(principal)
        if meter is None:
            if len(self.meters) >= self._most:
                self._forget()
            meter = self.meters[principal] = Meter()
            meter.requests_full_at = meter.bytes_full_at = self._clock()
        return meter

    def _forget(self) -> None:
        """Drop the meters that have full buckets and no connection: most often their identities are gone."""
        now = self._clock()
        self.meters = {
            name: meter
            for name, meter in self.meters.items()
            if meter.connections or max(meter.requests_full_at, meter.bytes_full_at) > now
        }


def _charged(full_at: float, now: float, seconds: float, is_free: bool) -> float:
    """Return the time at which a bucket will be full after `seconds` of its rate were taken. `is_free`: take no more
    than it holds."""
    later = max(full_at, now) + seconds
    return max(full_at, min(later, now + 1)) if is_free else later
