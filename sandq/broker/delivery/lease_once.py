"""Leasing once, without a subscription: for HTTP, scripts, and whoever asks what is ready now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.delivery.partition_leader import RETRY_MS, PartitionLeader
from sandq.broker.queries.fan_out import answers_of
from sandq.broker.replication.replica import Delivery
from sandq.broker.timers import Timer, Timers
from sandq.broker.turns import Turn
from sandq.model.errors import SandqError, Unavailable, UnknownTopic
from sandq.partition import commands as c
from sandq.partition.groups.group import RESETTING, SEEKING
from sandq.protocol.requests import Lease

TAKE_BYTES = 8 << 20
"""No further lease is asked for beyond."""

Taken = tuple[PartitionLeader, Delivery]


def release(deliveries: Iterable[PartitionLeader], request: Lease) -> None:
    """Nobody is there any more to get what was leased, or is being leased."""
    for delivery in deliveries:
        give_back = partial(_release, delivery, request)
        give_back()
        if delivery.host.stalled is not None:
            delivery.host.after_stall(give_back)  # what is on its way to the log may be applied all the same


def _release(delivery: PartitionLeader, request: Lease) -> None:
    with suppress(SandqError):  # it runs out then
        delivery.host.submit(c.Release(request.group, request.consumer_id), lambda result: None)


class _Bell:
    """What timers ring."""

    def __init__(self) -> None:
        self.event = trio.Event()

    def __call__(self) -> None:
        self.event.set()


class LeaseOnce:
    """One LEASE on its way through the partitions of a topic.

    It looks at all of them once; then only at those in which something changed, or came due.
    """

    def __init__(
        self,
        request: Lease,
        deliveries: Sequence[PartitionLeader],
        lease_ms: int,
        clock: GuardedClock,
        timers: Timers,
        turn: int,
        congested: Callable[[], bool],
    ) -> None:
        """`turn`: another one for each, so that no partition is always the last. `congested()`: the connection takes
        nothing now."""
        self._request = request
        self._lease_ms = lease_ms
        self._clock = clock
        self._timers = timers
        self._congested = congested
        self._slices = Turn()
        """Of thousands of partitions some hundred are looked at in one turn of the loop."""
        self._bell = _Bell()
        self._armed_ms: int | None = None
        """For when a timer is set ..."""
        self._armed: Timer | None = None
        """... which is this."""
        first = turn % len(deliveries)
        self._deliveries = [*deliveries[first:], *deliveries[:first]]
        self._changed: dict[PartitionLeader, None] = dict.fromkeys(self._deliveries)
        self._due_ms: dict[PartitionLeader, int] = {}
        """When to look at a partition again, changed or not."""

    async def run(self) -> list[Taken]:
        """Lease what is due; when that is nothing, what is first due within `wait_ms`."""
        deadline_ms = self._clock.now_ms() + self._request.wait_ms
        deadline: Timer | None = None
        try:
            for delivery in self._deliveries:
                delivery.watch(self._request.group, self._look_at)
                await self._slices.spend(1)
            await self._touch()
            deadline = self._timers.at(deadline_ms, self._bell) if self._request.wait_ms else None
            while True:
                self._bell.event = trio.Event()
                taken = await self._lease_due()
                if taken or self._clock.now_ms() >= deadline_ms:
                    break
                self._set_timer(min(deadline_ms, await self._touch()))
                await self._bell.event.wait()
        finally:
            # Many of these end long before their deadlines, or before a message that is due in a year.
            for timer in (deadline, self._armed):
                if timer is not None:
                    timer.cancel()
            for delivery in self._deliveries:
                delivery.unwatch(self._request.group, self._look_at)
        if not taken:
            self._check_not_halted()
        return await self._acked(taken) if self._request.ack and taken else taken

    def _check_not_halted(self) -> None:
        """Raises Unavailable: nothing is there only because a seek, or a clock reset, is under way."""
        name = self._request.group
        halted: dict[str, list[int]] = {SEEKING: [], RESETTING: []}
        for delivery in self._deliveries:
            group = delivery.groups.get(name)
            if group is not None and group.paused in halted:
                halted[group.paused].append(delivery.partition)
        for why, partitions in halted.items():
            if partitions:
                where = ", ".join(map(str, sorted(partitions)))
                raise Unavailable(f"group {name!r}, partition {where}: {why}; ask again in a moment")

    def _look_at(self, delivery: PartitionLeader) -> None:
        """Something happened there."""
        group = delivery.groups.get(self._request.group)
        if group is not None and not delivery.closed and delivery.host.ready:
            if group.next_ms is None:
                self._due_ms.pop(delivery, None)
                return
            if group.next_ms > self._clock.now_ms():
                self._due_ms[delivery] = group.next_ms
                if self._armed_ms is not None and self._armed_ms <= group.next_ms:
                    return
        self._changed[delivery] = None
        self._bell()

    def _set_timer(self, latest_ms: int) -> None:
        now_ms = self._clock.now_ms()
        if self._armed_ms is not None and self._armed_ms <= now_ms:
            self._armed_ms = None
        at_ms = min(latest_ms, min(self._due_ms.values(), default=latest_ms))
        if self._armed_ms is None or at_ms < self._armed_ms:
            if self._armed is not None:
                self._armed.cancel()
            self._armed_ms, self._armed = at_ms, self._timers.at(at_ms, self._bell)

    async def _touch(self) -> int:
        """A group that somebody takes from is in use, whether or not there is anything. When to say so again."""
        again_ms = []
        for delivery in self._deliveries:
            again_ms.append(delivery.touch(self._request.group))
            await self._slices.spend(1)
        return min(again_ms)

    async def _lease_due(self) -> list[Taken]:
        """What could be leased of the partitions to look at."""
        left, left_bytes = self._request.max, TAKE_BYTES
        now_ms = self._clock.now_ms()
        self._changed.update(dict.fromkeys(at for at, due_ms in self._due_ms.items() if due_ms <= now_ms))
        taken: list[Taken] = []
        while self._changed and left > 0 and left_bytes > 0:
            await self._slices.spend(1)
            delivery = next(iter(self._changed))
            if self._congested():
                self._due_ms[delivery] = self._clock.now_ms() + RETRY_MS
                break
            del self._changed[delivery]
            for lease in await self._lease(delivery, left):
                taken.append((delivery, lease))
                left -= lease.count
                left_bytes -= sum(len(piece.batch) for piece in lease.pieces)
        return taken

    async def _lease(self, delivery: PartitionLeader, limit: int) -> list[Delivery]:
        request = self._request
        if delivery.closed:
            raise UnknownTopic(f"topic {request.topic!r} was deleted", topic=request.topic)
        delivery.host.check_ready()
        group = delivery.groups.get(request.group)
        if group is None:
            raise Unavailable(f"group {request.group!r} was deleted; ask again", group=request.group)
        self._due_ms.pop(delivery, None)
        now_ms = self._clock.now_ms()
        if group.next_ms is None:
            return []
        if group.next_ms > now_ms:
            self._due_ms[delivery] = group.next_ms
            return []
        grant = c.Grant(request.consumer_id, limit, self._lease_ms)
        found: list[Delivery] = await delivery.host.call(c.Lease(request.group, now_ms, (grant,)))
        if not found:
            # Due and not granted: it is another's, or the group is paused.
            self._due_ms[delivery] = now_ms + RETRY_MS
        return found

    async def _acked(self, taken: list[Taken]) -> list[Taken]:
        """Those of which the ack is done; what could not be acked is given back, what a seek revoked comes again.
        Raises when that is all of them, and not because of seeks."""
        answers = await answers_of([(delivery.host, c.Ack([(lease.token, None)])) for delivery, lease in taken])
        if any(answer != [None] for answer in answers):
            release(self._deliveries, self._request)
        done = [one for one, answer in zip(taken, answers, strict=True) if answer == [None]]
        failures = [answer for answer in answers if isinstance(answer, SandqError)]
        if failures and not done:
            raise failures[0]
        return done
