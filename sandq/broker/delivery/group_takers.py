"""What the LEASE requests for one group of a topic know together: where something may be due, when to look at the other
partitions, and who waits. So one that waits costs next to nothing, however many partitions there are, and a message
that comes is asked for by a few of those who wait for it, not by all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
from sandq.broker.event_loop import Turn
from sandq.broker.leader.partition_leader import RETRY_MS, PartitionLeader
from sandq.model.errors import SandqError, Unavailable, UnknownTopic

Opens = Callable[[Sequence[PartitionLeader]], Awaitable[None]]
"""Makes the group in those of these partitions where it is new."""


class Bell:
    """What wakes one request that waits."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def heard(self) -> None:
        """Until it rang since this returned last."""
        await self._event.wait()
        self._event = trio.Event()


class GroupTakers:
    """Is told of its group by the partitions from the first request on, until the last one of those that were there at
    the same time has ended."""

    def __init__(self, topic: str, group: str, clock: GuardedClock, timers: Timers) -> None:
        self._topic = topic
        self._group = group
        self._clock = clock
        self._timers = timers
        self._requests = 0
        self._lock = trio.Lock()
        """One request at a time gets to know partitions, or says for all that the group is in use."""
        self._known: dict[PartitionLeader, None] = {}
        self._due: OrderedDict[PartitionLeader, None] = OrderedDict()
        """Partitions in which something may be due, those looked at longest ago first."""
        self._later_ms: dict[PartitionLeader, int] = {}
        """Others: when to look there, whether or not anything changes."""
        self._armed_ms: int | None = None
        """For when a timer is set ..."""
        self._armed: Timer | None = None
        """... which is this."""
        self._touch_ms: int | None = None
        """When to say again that the group is in use."""
        self._waiting: OrderedDict[Bell, None] = OrderedDict()
        """Who came first stands first, but for those that were woken together and got nothing."""
        self.error: SandqError | None = None
        """Other partitions are led here than before, or the group is gone: who takes part is to ask anew."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """While a request is under way."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._leave()
            elif self._is_wanted():
                self.wake(1)  # it may have been woken, and have ended instead

    @property
    def in_use(self) -> bool:
        return self._requests > 0

    async def know(self, leaders: Sequence[PartitionLeader], opens: Opens) -> None:
        """Be told of these partitions from now on. Raises what `opens` does, and what `check` does."""
        if not self._unknown(leaders):
            self.check()
            return
        async with self._lock:
            new = self._unknown(leaders)
            if new:
                await opens(new)
                turn = Turn()
                for leader in new:
                    self._known[leader] = None
                    leader.watch(self._group, self._told)
                    self.look_at(leader)
                    await turn.spend(1)
                self._touch_ms = None
        self.check()

    def _unknown(self, leaders: Sequence[PartitionLeader]) -> list[PartitionLeader]:
        return [leader for leader in leaders if leader not in self._known]

    def _leave(self) -> None:
        for leader in self._known:
            leader.unwatch(self._group, self._told)
        self._known.clear()
        self._due.clear()
        self._later_ms.clear()
        if self._armed is not None:
            self._armed.cancel()
        self._armed_ms = self._armed = self._touch_ms = None

    def check(self) -> None:
        """Raises UnknownTopic, NotLeader, Unavailable: a partition, or the group, is not what it was."""
        if self.error is not None:
            raise self.error

    async def touch(self) -> None:
        """Say that the group is in use, whether or not there is anything, when that is to be said again."""
        if not self._is_untouched():
            return
        async with self._lock:
            if not self._is_untouched():
                return
            turn, again_ms = Turn(), []
            for leader in list(self._known):
                again_ms.append(leader.touch(self._group))
                await turn.spend(1)
            self._touch_ms = min(again_ms)
            self._arm(self._touch_ms)

    def _is_untouched(self) -> bool:
        return self._touch_ms is None or self._touch_ms <= self._clock.now_ms()

    # -- what is due ----------------------------------------------------------------------------------------------

    def due(self) -> list[PartitionLeader]:
        """Where to look now."""
        return list(self._due)

    def is_due(self, leader: PartitionLeader) -> bool:
        """Whether something may be due there."""
        return leader in self._due

    def looked_at(self, leader: PartitionLeader) -> None:
        """Something was asked for there: others come before it now."""
        if leader in self._due:
            self._due.move_to_end(leader)

    def look_again(self, leader: PartitionLeader, at_ms: int) -> None:
        """Nothing is to be had there until then, unless something changes."""
        self._due.pop(leader, None)
        self._later_ms[leader] = at_ms
        self._arm(at_ms)

    def _told(self, leader: PartitionLeader, error: SandqError | None) -> None:
        if error is None:
            self.look_at(leader)
            if leader in self._due:
                self.wake(1)
        else:
            self._end(error)

    def look_at(self, leader: PartitionLeader) -> None:
        """Something happened there, or may have."""
        group = leader.groups.get(self._group)
        if leader.closed:
            self._end(UnknownTopic(f"topic {self._topic!r} was deleted", topic=self._topic))
        elif not leader.raft_group.ready:
            try:
                leader.raft_group.check_ready()
            except SandqError as error:
                self._end(error)
        elif group is None:
            self._end(Unavailable(f"group {self._group!r} was deleted; ask again", group=self._group))
        elif not leader.knows_limits:
            self.look_again(leader, self._clock.now_ms() + RETRY_MS)
        elif group.due_ms is None:
            self._due.pop(leader, None)
            self._later_ms.pop(leader, None)
        elif group.due_ms > self._clock.now_ms():
            self.look_again(leader, group.due_ms)
        else:
            self._later_ms.pop(leader, None)
            self._due.setdefault(leader)

    def _end(self, error: SandqError) -> None:
        self.error = error
        self.wake(len(self._waiting))

    def _arm(self, at_ms: int) -> None:
        if self._armed_ms is None or at_ms < self._armed_ms:
            if self._armed is not None:
                self._armed.cancel()
            self._armed_ms, self._armed = at_ms, self._timers.at(at_ms, self._look_later)

    def _look_later(self) -> None:
        self._armed_ms = self._armed = None
        now_ms = self._clock.now_ms()
        for leader in [at for at, due_ms in self._later_ms.items() if due_ms <= now_ms]:
            del self._later_ms[leader]
            self._due.setdefault(leader)
        left_ms = list(self._later_ms.values())
        if self._touch_ms is not None and self._touch_ms > now_ms:
            left_ms.append(self._touch_ms)
        if left_ms:
            self._arm(min(left_ms))
        if self._is_wanted():
            self.wake(1)

    # -- who waits ------------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        """There is something to do for whoever waits."""
        return bool(self._due) or self.error is not None or self._is_untouched()

    def pass_on(self) -> None:
        """Whoever got something wakes two: all look soon where there is enough for all, few where one message came."""
        if self._due:
            self.wake(2)

    def wake(self, most: int) -> None:
        """Have so many of those who wait look."""
        for _ in range(min(most, len(self._waiting))):
            bell, _ = self._waiting.popitem(last=False)
            bell()

    async def wait(self, bell: Bell, *, first: bool) -> None:
        """Until `bell` rings: for something that may be due, or by who has it. `first`: before those who wait already,
        as one that was woken for nothing."""
        self._waiting[bell] = None
        self._waiting.move_to_end(bell, last=not first)
        try:
            await bell.heard()
        finally:
            self._waiting.pop(bell, None)
