"""Leasing once, without a subscription: for HTTP, scripts, and whoever asks what is ready now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.group_takers import Bell, GroupTakers
from sandq.broker.event_loop import Turn
from sandq.broker.leader.partition_leader import RETRY_MS, PartitionLeader, lease_work
from sandq.broker.reads.fan_out import answers_of
from sandq.broker.replication.replica import Delivery
from sandq.model.caller import Caller
from sandq.model.errors import SandqError, Unavailable
from sandq.partition import commands as c
from sandq.partition.groups.group import RESETTING, SEEKING
from sandq.protocol.requests import Lease

TAKE_BYTES = 8 << 20
"""No further lease is asked for beyond."""

Taken = tuple[PartitionLeader, Delivery]


def release(leaders: Iterable[PartitionLeader], request: Lease) -> None:
    """Nobody is there any more to get what was leased, or is being leased."""
    for leader in leaders:
        give_back = partial(_release, leader, request)
        give_back()
        if leader.raft_group.stalled is not None:
            leader.raft_group.after_stall(give_back)  # what is on its way to the log may be applied all the same


def _release(leader: PartitionLeader, request: Lease) -> None:
    with suppress(SandqError):  # it runs out then
        leader.raft_group.submit(c.Release(request.group, request.consumer_id), lambda result: None)


class LeaseOnce:
    """One LEASE on its way through the partitions of a topic."""

    def __init__(
        self,
        request: Lease,
        caller: Caller,
        leaders: Sequence[PartitionLeader],
        takers: GroupTakers,
        lease_ms: int,
        clock: GuardedClock,
        timers: Timers,
        congested: Callable[[], bool],
    ) -> None:
        """`takers` knows the `leaders`. `congested()`: the connection takes nothing now."""
        self._request = request
        self._line = caller.line
        self._deliveries = leaders
        self._takers = takers
        self._lease_ms = lease_ms
        self._clock = clock
        self._timers = timers
        self._congested = congested
        self._turn = Turn()
        """Of thousands of partitions some hundred are looked at in one turn of the loop."""
        self.asked: dict[PartitionLeader, None] = {}
        """Those in which it has, or may be given, something."""

    async def run(self) -> list[Taken]:
        """Lease what is due; when that is nothing, what is first due within `wait_ms`."""
        for leader in self._deliveries:
            if leader.limits_wanted:
                leader.note_asked(self._request.group)
                await self._turn.spend(1)
        taken = await self._lease_due()
        if not taken and self._request.wait_ms:
            taken = await self._wait()
        if not taken:
            self._check_not_halted()
            return []
        self._takers.pass_on()
        return await self._acked(taken) if self._request.ack else taken

    async def _wait(self) -> list[Taken]:
        bell, was_woken = Bell(), False
        deadline_ms = self._clock.now_ms() + self._request.wait_ms
        deadline = self._timers.at(deadline_ms, bell)
        try:
            while True:
                if self._congested():
                    self._takers.pass_on()
                    self._timers.at(self._clock.now_ms() + RETRY_MS, bell)
                    await bell.heard()
                elif not self._takers.due():
                    await self._takers.wait(bell, first=was_woken)
                    was_woken = True
                taken = await self._lease_due()
                if taken or self._clock.now_ms() >= deadline_ms:
                    return taken
        finally:
            deadline.cancel()  # most of these end long before

    def _check_not_halted(self) -> None:
        """Raises Unavailable: nothing is there only because a seek, or a clock reset, is under way."""
        name = self._request.group
        halted: dict[str, list[int]] = {SEEKING: [], RESETTING: []}
        for leader in self._deliveries:
            group = leader.groups.get(name)
            if group is not None and group.paused in halted:
                halted[group.paused].append(leader.partition)
        for why, partitions in halted.items():
            if partitions:
                where = ", ".join(map(str, sorted(partitions)))
                raise Unavailable(f"group {name!r}, partition {where}: {why}; ask again in a moment")

    async def _lease_due(self) -> list[Taken]:
        """What could be leased where something may be due."""
        await self._takers.touch()
        self._takers.check()
        left, left_bytes = self._request.max, TAKE_BYTES
        taken: list[Taken] = []
        for leader in self._takers.due():
            if left <= 0 or left_bytes <= 0 or self._congested():
                break
            await self._turn.spend(1)
            for lease in await self._lease(leader, left):
                taken.append((leader, lease))
                left -= lease.count
                left_bytes -= sum(len(piece.batch) for piece in lease.pieces)
        return taken

    async def _lease(self, leader: PartitionLeader, limit: int) -> list[Delivery]:
        request = self._request
        self._takers.look_at(leader)
        self._takers.check()
        if not self._takers.is_due(leader):
            return []
        self.asked[leader] = None
        now_ms = self._clock.now_ms()
        grant = c.Grant(request.consumer_id, limit, self._lease_ms)
        found: list[Delivery] = []
        while not found:
            command = c.Lease(request.group, now_ms, (grant,))
            found = await leader.raft_group.call(command, self._line, work=lease_work((grant,)))
            if not leader.is_promoting(request.group):
                break
            now_ms = self._clock.now_ms()
        if found:
            self._takers.looked_at(leader)
        else:
            # Due and not granted: it is another's, or the group is paused.
            self._takers.look_again(leader, now_ms + RETRY_MS)
        return found

    async def _acked(self, taken: list[Taken]) -> list[Taken]:
        """Those of which the ack is done; what could not be acked is given back, what a seek revoked comes again.
        Raises when that is all of them, and not because of seeks."""
        acks = [(leader.raft_group, c.Ack([(lease.token, None)])) for leader, lease in taken]
        answers = await answers_of(acks, self._line)
        if any(answer != [None] for answer in answers):
            release(self.asked, self._request)
        done = [one for one, answer in zip(taken, answers, strict=True) if answer == [None]]
        failures = [answer for answer in answers if isinstance(answer, SandqError)]
        if failures and not done:
            raise failures[0]
        return done
