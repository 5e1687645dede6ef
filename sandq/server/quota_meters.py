"""Hold identities to what they may ask of this process in a second, and to how many connections they may have.

Each identity has two token buckets, of requests and of bytes of requests, which hold what one second gives. A bucket is
one number: the instant at which it will be full. What settles messages is counted, and never refused: who may not ack
would get the same messages again. It empties the buckets, and no more: who settles all the time what is pushed to it
may ask for something else soon after. A request that is refused is not counted.
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
"""Requests that settle, or keep the connection; of these PING, CREDIT and ON_BEHALF are not counted, either."""
NOT_COUNTED: Final = frozenset({Type.PING, Type.CREDIT, Type.ON_BEHALF, Type.PROVE})
CONNECT_AGAIN_MS: Final = 1000
_LEAST_S: Final = 1e-9


class Meter:
    """What one identity has taken here."""

    __slots__ = ("bytes", "bytes_full_at", "connections", "rates", "refused", "requests", "requests_full_at", "taken")

    def __init__(self) -> None:
        self.requests = self.bytes = self.refused = self.connections = 0
        self.requests_full_at = self.bytes_full_at = 0.0
        self.rates: tuple[int | None, int | None] = (None, None)
        """That the buckets are of: under others they begin full."""
        self.taken = (0, 0, 0)
        """Requests, bytes and refusals that `take_counts` returned."""


class QuotaMeters:
    """Those of one process: of identities that have a quota, of which there are at most as many as identities."""

    def __init__(self, clock: Callable[[], float] = trio.current_time, most: int = FIXED.identities) -> None:
        """`clock`: monotonic, in seconds. `most`: of more identities, those that owe nothing are forgotten."""
        self._clock = clock
        self._most = most
        self.meters: dict[str, Meter] = {}
        """By principal."""

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
        """Count requests of so many bytes together. Raises QuotaExceeded when there is no room for one more: nothing is
        counted then. Several that came together are let through together, and those that follow wait the longer.
        `is_free`: they are never refused, and take no more than there is; but
        for the bytes of one that `carries` messages, which are waited for like those of others."""
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
            # A bucket of a second must have room for one request, or for some byte.
            if per_s is not None:
                wait_s = math.inf if not per_s else meter.requests_full_at - now - 1 + 1 / per_s
                self._check(meter, principal, "requests_per_s", per_s, wait_s)
            if bytes_per_s is not None:
                wait_s = math.inf if not bytes_per_s else meter.bytes_full_at - now - 1 + 1 / bytes_per_s
                self._check(meter, principal, "bytes_per_s", bytes_per_s, wait_s)
        if per_s:
            meter.requests_full_at = _taken(meter.requests_full_at, now, requests / per_s, is_free)
        if bytes_per_s:
            meter.bytes_full_at = _taken(meter.bytes_full_at, now, size / bytes_per_s, is_free and not carries)
        meter.requests += requests
        meter.bytes += size

    def has_room(self, principal: str, quota: Quota, requests: int) -> bool:
        """Whether each of so many requests would be let through now, as far as their number is concerned."""
        per_s = quota.requests_per_s
        if per_s is None:
            return True
        meter, now = self._meter(principal), self._clock()
        full_at = meter.requests_full_at if meter.rates == (per_s, quota.bytes_per_s) else now
        return bool(per_s) and max(full_at, now) - now - 1 + requests / per_s <= _LEAST_S

    def owe(self, principal: str, quota: Quota, size: int) -> None:
        """Count bytes of a request that was let through, and turned out to have so many more: they are waited for."""
        meter, bytes_per_s = self._meter(principal), quota.bytes_per_s
        meter.bytes += size
        if bytes_per_s and meter.rates == (quota.requests_per_s, bytes_per_s):
            meter.bytes_full_at = _taken(meter.bytes_full_at, self._clock(), size / bytes_per_s, False)

    def _check(self, meter: Meter, principal: str, name: str, most: int, wait_s: float) -> None:
        if wait_s <= _LEAST_S:
            return
        meter.refused += 1
        told: dict[str, object] = {"quota": name, "maximum": most, "principal": principal}
        again = "it may ask nothing here"
        if wait_s < math.inf:
            told["retry_after_ms"] = math.ceil(wait_s * 1000)
            again = f"ask again in {told['retry_after_ms']} ms"
        raise QuotaExceeded(f"{principal} has asked for all that its quota allows, {most:,} ({name}): {again}", **told)

    def connect(self, principal: str, quota: Quota) -> None:
        """Count one more connection, until `disconnect`. Raises QuotaExceeded."""
        meter, most = self._meter(principal), quota.connections
        if most is not None and meter.connections >= most:
            meter.refused += 1
            raise QuotaExceeded(
                f"{principal} has {meter.connections} connections here, and its quota is {most} (connections): close "
                "one, or have the quota raised",
                quota="connections",
                maximum=most,
                principal=principal,
                retry_after_ms=CONNECT_AGAIN_MS,
            )
        meter.connections += 1

    def disconnect(self, principal: str) -> None:
        """One is gone."""
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
        """Return what was counted since the last call, as JSON: `[principal, requests, bytes, refused]` of each."""
        counts: list[list[str | int]] = []
        for principal, meter in self.meters.items():
            now, taken = (meter.requests, meter.bytes, meter.refused), meter.taken
            if now != taken:
                counts.append([principal, *(new - old for new, old in zip(now, taken, strict=True))])
                meter.taken = now
        return counts

    def add_counts(self, counts: Iterable[Sequence[Any]]) -> None:
        """Add what `take_counts` of another process returned: it is counted here, and takes nothing from the buckets.

        Raises ValueError or TypeError if it is something else.
        """
        for principal, requests, size, refused in counts:
            meter = self._meter(principal)
            meter.requests += requests
            meter.bytes += size
            meter.refused += refused

    def _meter(self, principal: str) -> Meter:
        meter = self.meters.get(principal)
        if meter is None:
            if len(self.meters) >= self._most:
                self._forget()
            meter = self.meters[principal] = Meter()
            meter.requests_full_at = meter.bytes_full_at = self._clock()
        return meter

    def _forget(self) -> None:
        """Forget those that owe nothing and have no connection: of identities that are gone, most often."""
        now = self._clock()
        self.meters = {
            name: meter
            for name, meter in self.meters.items()
            if meter.connections or max(meter.requests_full_at, meter.bytes_full_at) > now
        }


def _taken(full_at: float, now: float, seconds: float, is_free: bool) -> float:
    """When a bucket is full of which that was taken. `is_free`: no more than was in it."""
    later = max(full_at, now) + seconds
    return max(full_at, min(later, now + 1)) if is_free else later
