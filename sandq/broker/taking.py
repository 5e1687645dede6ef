"""Leasing once, without a subscription: for HTTP, scripts, and whoever asks what is ready now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from sandq.model.errors import UnknownTopic
from sandq.partition import commands as c

from .clock import GuardedClock
from .deliverer import RETRY_MS, PartitionDelivery
from .host import call_all
from .replica import Delivery
from .timers import Timers

TAKE_BYTES = 8 << 20
"""No further lease is asked for beyond."""


@dataclass(frozen=True, slots=True)
class Taker:
    """What a LEASE asks for. `consumer` is of this request alone: what it holds can be given back as a whole."""

    topic: str
    group: str
    consumer: str
    limit: int
    wait_ms: int
    lease_ms: int | None
    start: c.Position
    ack: bool


class Taking:
    """One LEASE on its way through the partitions of a topic."""

    def __init__(
        self,
        asked: Taker,
        deliveries: Sequence[PartitionDelivery],
        lease_ms: int,
        clock: GuardedClock,
        timers: Timers,
        turn: int,
    ) -> None:
        """`turn`: another one for each, so that no partition is always the last."""
        self._asked = asked
        self._lease_ms = lease_ms
        self._clock = clock
        self._timers = timers
        self._changed = trio.Event()
        first = turn % len(deliveries)
        self._deliveries = [*deliveries[first:], *deliveries[:first]]
        self._taken: list[tuple[PartitionDelivery, Delivery]] = []

    async def run(self) -> list[tuple[PartitionDelivery, Delivery]]:
        """Lease what is due; when that is nothing, what is first due within `wait_ms`."""
        deadline_ms = self._clock.now_ms() + self._asked.wait_ms
        for delivery in self._deliveries:
            delivery.watchers[self._wake] = None
        try:
            while True:
                self._changed = trio.Event()
                await self._lease_due()
                now_ms = self._clock.now_ms()
                if self._taken or now_ms >= deadline_ms:
                    break
                next_ms = self._next_ms(deadline_ms)
                # What is due and was not granted is another's, or the group is paused: a moment later, again.
                at_ms = next_ms if next_ms > now_ms else now_ms + RETRY_MS
                self._timers.at(min(at_ms, deadline_ms), self._wake)
                await self._changed.wait()
        finally:
            for delivery in self._deliveries:
                delivery.watchers.pop(self._wake, None)
        if self._asked.ack:
            await call_all([(delivery.host, c.Ack([(lease.token, None)])) for delivery, lease in self._taken])
        return self._taken

    def _wake(self) -> None:
        self._changed.set()

    def _next_ms(self, deadline_ms: int) -> int:
        due = [delivery.next_ms(self._asked.group) for delivery in self._deliveries]
        return min((at_ms for at_ms in due if at_ms is not None), default=deadline_ms)

    async def _lease_due(self) -> None:
        asked = self._asked
        left, left_bytes = asked.limit, TAKE_BYTES
        for delivery in self._deliveries:
            if delivery.closed:
                raise UnknownTopic(f"topic {asked.topic!r} was deleted", topic=asked.topic)
            if left <= 0 or left_bytes <= 0:
                return
            now_ms = self._clock.now_ms()
            next_ms = delivery.next_ms(asked.group)
            if next_ms is None or next_ms > now_ms:
                continue
            grant = c.Grant(asked.consumer, left, self._lease_ms)
            for lease in await delivery.host.call(c.Lease(asked.group, now_ms, (grant,))):
                self._taken.append((delivery, lease))
                left -= lease.count
                left_bytes -= sum(len(piece.batch) for piece in lease.pieces)
