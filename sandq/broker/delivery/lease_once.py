"""Lease messages once, without a subscription: for HTTP, scripts and other callers that want messages now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.group_waiters import Bell, GroupWaiters
from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.partition_leader import RETRY_MS, PartitionLeader, lease_work
from sandq.broker.reads.fan_out import answers_of
from sandq.broker.replication.replica import Delivery
from sandq.model.caller import Caller
from sandq.model.errors import SandqError, Unavailable
from sandq.partition import commands as c
from sandq.partition.groups.group import RESETTING, SEEKING
from sandq.protocol.requests import Lease

TAKE_BYTES = 8 << 20
"""Bytes of leased messages after which no further lease is requested."""

Taken = tuple[PartitionLeader, Delivery]


def release(leaders: Iterable[PartitionLeader], request: Lease) -> None:
    """Give back all leases of a request that has ended, including leases whose command is in progress."""
    for leader in leaders:
        give_back = partial(_release, leader, request)
        give_back()
        if leader.raft_group.stalled is not None:
            leader.raft_group.after_stall(give_back)  # a lease command that was proposed may still be applied


def _release(leader: PartitionLeader, request: Lease) -> None:
    """Give back the leases of a request in one partition."""
    with suppress(SandqError):  # if this fails, the leases expire
        leader.raft_group.submit(c.Release(request.group, request.consumer_id), lambda result: None)


class LeaseOnce:
    """One LEASE request over the partitions of a topic."""

    def __init__(
        self,
        request: Lease,
        caller: Caller,
        leaders: Sequence[PartitionLeader],
        waiters: GroupWaiters,
        lease_ms: int,
        clock: GuardedClock,
        timers: Timers,
        congested: Callable[[], bool],
    ) -> None:
        """`waiters` must watch the `leaders`. `congested()`: returns whether the client's connection accepts no data
        now."""
        self._request = request
        self._line = caller.line
        self._leaders = leaders
        self._waiters = waiters
        self._lease_ms = lease_ms
        self._clock = clock
        self._timers = timers
        self._congested = congested
        self._slice = TimeSlice()
        """Time slice, in which about a hundred partitions are checked. A topic may have thousands of partitions."""
        self.asked: dict[PartitionLeader, None] = {}
        """Partitions in which the request has leases, or may get leases."""

    async def run(self) -> list[Taken]:
        """Lease due messages. If none are due, wait up to `wait_ms` for messages."""
        for leader in self._leaders:
            if leader.limits_wanted:
                leader.note_asked(self._request.group)
                await self._slice.spend(1)
        taken = await self._lease_due()
        if not taken and self._request.wait_ms:
            taken = await self._wait()
        if not taken:
            self._check_not_halted()
            return []
        self._waiters.wake_next()
        return await self._acked(taken) if self._request.ack else taken

    async def _wait(self) -> list[Taken]:
        """Wait until messages were leased, or `wait_ms` has passed. Return the leases."""
        bell, was_woken = Bell(), False
        deadline_ms = self._clock.now_ms() + self._request.wait_ms
        deadline = self._timers.at(deadline_ms, bell)
        try:
            while True:
                if self._congested():
                    self._waiters.wake_next()
                    self._timers.at(self._clock.now_ms() + RETRY_MS, bell)
                    await bell.heard()
                elif not self._waiters.due():
                    await self._waiters.wait(bell, first=was_woken)
                    was_woken = True
                taken = await self._lease_due()
                if taken or self._clock.now_ms() >= deadline_ms:
                    return taken
        finally:
            deadline.cancel()  # most requests end long before their deadline

    def _check_not_halted(self) -> None:
        """Raise Unavailable if nothing was leased because a seek or a clock reset is in progress."""
        name = self._request.group
        halted: dict[str, list[int]] = {SEEKING: [], RESETTING: []}
        for leader in self._leaders:
            group = leader.groups.get(name)
            if group is not None and group.paused in halted:
                halted[group.paused].append(leader.partition)
        for why, partitions in halted.items():
            if partitions:
                where = ", ".join(map(str, sorted(partitions)))
                raise Unavailable(f"group {name!r}, partition {where}: {why}; ask again in a moment")

    async def _lease_due(self) -> list[Taken]:
        """Lease from the partitions in which messages may be due."""
        await self._waiters.touch()
        self._waiters.check()
        left, left_bytes = self._request.max, TAKE_BYTES
        taken: list[Taken] = []
        for leader in self._waiters.due():
            if left <= 0 or left_bytes <= 0 or self._congested():
                break
            await self._slice.spend(1)
            for lease in await self._lease(leader, left):
                taken.append((leader, lease))
                left -= lease.count
                left_bytes -= sum(len(piece.batch) for piece in lease.pieces)
        return taken

    async def _lease(self, leader: PartitionLeader, limit: int) -> list[Delivery]:
        """Lease up to `limit` messages in one partition, if messages may be due there. Return the leases."""
        request = self._request
        self._waiters.check_partition(leader)
        self._waiters.check()
        if not self._waiters.is_due(leader):
            return []
        self.asked[leader] = None
        now_ms = self._clock.now_ms()
        grant = c.Grant(request.consumer_id, limit, self._lease_ms)
        found: list[Delivery] = []
        while not found:
            command = c.Lease(request.group, now_ms, (grant,))
            found = await leader.raft_group.call(command, self._line, work=lease_work((grant,)))
            # In a ranked topic, some leases only rank due messages, and grant none (`is_promoting`). Then lease again.
            if not leader.is_promoting(request.group):
                break
            now_ms = self._clock.now_ms()
        if found:
            self._waiters.note_leased(leader)
        else:
            # The status showed due messages, but the command leased none. For example, an earlier command leased them.
            self._waiters.check_at(leader, now_ms + RETRY_MS)
        return found

    async def _acked(self, taken: list[Taken]) -> list[Taken]:
        """Ack the leases, and return the leases that were acked.

        Give back leases that could not be acked. Messages whose lease was revoked by a seek are delivered again. If an
        ack raised an error and no lease was acked, raise this error."""
        acks = [(leader.raft_group, c.Ack([(lease.token, None)])) for leader, lease in taken]
        answers = await answers_of(acks, self._line)
        if any(answer != [None] for answer in answers):
            release(self.asked, self._request)
        done = [one for one, answer in zip(taken, answers, strict=True) if answer == [None]]
        failures = [answer for answer in answers if isinstance(answer, SandqError)]
        if failures and not done:
            raise failures[0]
        return done
