"""Coordinate the LEASE requests for one group of a topic.

The requests share two things: the list of partitions in which messages may be due, and the times at which to check the
other partitions. So a waiting request costs almost nothing, even if there are many partitions. A new message wakes only
a few of the waiting requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.partition_leader import RETRY_MS, PartitionLeader
from sandq.model.errors import SandqError, Unavailable, UnknownTopic
from sandq.partition.group_status import Limited

Opens = Callable[[Sequence[PartitionLeader]], Awaitable[None]]
"""Function that creates the group in those of the given partitions that lack it."""


class Bell:
    """Wakes one waiting request."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def heard(self) -> None:
        """Wait until the bell is rung. Return at once if it was rung since this method last returned."""
        await self._event.wait()
        self._event = trio.Event()


class GroupWaiters:
    """The LEASE requests in progress for one group, and the partitions from which they lease.

    The object watches the partitions while at least one request is in progress.
    """

    def __init__(self, topic: str, group: str, clock: GuardedClock, timers: Timers) -> None:
        self._topic = topic
        self._group = group
        self._clock = clock
        self._timers = timers
        self._requests = 0
        self._lock = trio.Lock()
        """Held while one request adds partitions or marks the group as in use. Requests that wait for the lock then
        find the work done."""
        self._known: dict[PartitionLeader, None] = {}
        self._due: OrderedDict[PartitionLeader, None] = OrderedDict()
        """Partitions in which messages may be due, least recently checked first."""
        self._later_ms: dict[PartitionLeader, int] = {}
        """For partitions without due messages: time in ms at which to check the partition, even if nothing changes
        there."""
        self._armed_ms: int | None = None
        """Time in ms at which the timer fires."""
        self._armed: Timer | None = None
        """The timer that fires at `_armed_ms`."""
        self._touch_ms: int | None = None
        """Time in ms at which to mark the group as in use again. None: mark the group now."""
        self._waiting: OrderedDict[Bell, None] = OrderedDict()
        """Waiting requests, in the order in which they are woken. Requests that were woken in vain come first."""
        self.error: SandqError | None = None
        """Error with which all requests end. Set if the group is gone, or if this node leads other partitions than
        before."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Register a request while it is in progress."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._leave()
            elif self._is_wanted():
                self.wake(1)  # this request may have been woken, but did not lease

    @property
    def in_use(self) -> bool:
        """True if requests are in progress."""
        return self._requests > 0

    async def add(self, leaders: Sequence[PartitionLeader], opens: Opens) -> None:
        """Watch these partitions. Raise the errors of `opens` and `check`."""
        if not self._unknown(leaders):
            self.check()
            return
        async with self._lock:
            new = self._unknown(leaders)
            if new:
                await opens(new)
                time_slice = TimeSlice()
                for leader in new:
                    self._known[leader] = None
                    leader.watch(self._group, self._on_change)
                    self.check_partition(leader)
                    await time_slice.spend(1)
                self._touch_ms = None
        self.check()

    def _unknown(self, leaders: Sequence[PartitionLeader]) -> list[PartitionLeader]:
        """Return the partitions that are not watched yet."""
        return [leader for leader in leaders if leader not in self._known]

    def _leave(self) -> None:
        """Stop watching the partitions, and cancel the timer."""
        for leader in self._known:
            leader.unwatch(self._group, self._on_change)
        self._known.clear()
        self._due.clear()
        self._later_ms.clear()
        if self._armed is not None:
            self._armed.cancel()
        self._armed_ms = self._armed = self._touch_ms = None

    def check(self) -> None:
        """Raise UnknownTopic, NotLeader or Unavailable if a partition or the group has changed."""
        if self.error is not None:
            raise self.error

    async def touch(self) -> None:
        """Mark the group as in use in all watched partitions, unless it was marked recently."""
        if not self._is_untouched():
            return
        async with self._lock:
            if not self._is_untouched():
                return
            time_slice, next_ms = TimeSlice(), []
            for leader in list(self._known):
                next_ms.append(leader.touch(self._group))
                await time_slice.spend(1)
            self._touch_ms = min(next_ms)
            self._arm(self._touch_ms)

    def _is_untouched(self) -> bool:
        """Return whether the group must be marked as in use now."""
        return self._touch_ms is None or self._touch_ms <= self._clock.now_ms()

    # -- due partitions -------------------------------------------------------------------------------------------

    def due(self) -> list[PartitionLeader]:
        """Return the partitions to check now."""
        return list(self._due)

    def is_due(self, leader: PartitionLeader) -> bool:
        """Return whether messages may be due in a partition."""
        return leader in self._due

    def note_leased(self, leader: PartitionLeader) -> None:
        """Move a partition behind the other due partitions, because messages were leased in it."""
        if leader in self._due:
            self._due.move_to_end(leader)

    def check_at(self, leader: PartitionLeader, at_ms: int) -> None:
        """Check a partition again at `at_ms`, or earlier if something changes there."""
        self._due.pop(leader, None)
        self._later_ms[leader] = at_ms
        self._arm(at_ms)

    def _on_change(self, leader: PartitionLeader, error: SandqError | None) -> None:
        """Handle a change of the group in a partition, or the error that ends the watch."""
        if error is None:
            self.check_partition(leader)
            if leader in self._due:
                self.wake(1)
        else:
            self._end(error)

    def check_partition(self, leader: PartitionLeader) -> None:
        """Read the group's status in a partition, and record whether messages may be due now, later, or not at all.

        If the partition or the group is gone, or another node leads the partition, end all requests."""
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
            self.check_at(leader, self._clock.now_ms() + RETRY_MS)
        elif group.due_ms is None:
            self._due.pop(leader, None)
            self._later_ms.pop(leader, None)
            if group.limit is not None:
                self._ask_for_share(leader, group.limit)
        elif group.due_ms > self._clock.now_ms():
            self.check_at(leader, group.due_ms)
        else:
            self._later_ms.pop(leader, None)
            self._due.setdefault(leader)

    def _ask_for_share(self, leader: PartitionLeader, limit: Limited) -> None:
        """Ask for a larger share of the limits if they hold up a message, now or when it is due."""
        due_ms = limit.later_ms(self._clock.now_ms())
        if due_ms is not None:
            self.check_at(leader, due_ms)
        elif limit.next_ms is not None:
            leader.note_asked(self._group)

    def _end(self, error: SandqError) -> None:
        """End all requests with `error`. The clients must ask again."""
        self.error = error
        self.wake(len(self._waiting))

    def _arm(self, at_ms: int) -> None:
        """Set the timer to `at_ms`, unless it is set to an earlier time."""
        if self._armed_ms is None or at_ms < self._armed_ms:
            if self._armed is not None:
                self._armed.cancel()
            self._armed_ms, self._armed = at_ms, self._timers.at(at_ms, self._check_due)

    def _check_due(self) -> None:
        """Handle the timer: mark partitions whose time has come as due, set the timer again, and wake one request."""
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

    # -- waiting requests -----------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        """Return whether there is work for a waiting request."""
        return bool(self._due) or self.error is not None or self._is_untouched()

    def wake_next(self) -> None:
        """If more messages may be due, wake two waiting requests. Called after a request got messages, or
        when its connection accepts none.

        A woken request that gets messages wakes two more. So a backlog wakes all requests soon, and a single
        message wakes few."""
        if self._due:
            self.wake(2)

    def wake(self, most: int) -> None:
        """Wake up to `most` waiting requests."""
        for _ in range(min(most, len(self._waiting))):
            bell, _ = self._waiting.popitem(last=False)
            bell()

    async def wait(self, bell: Bell, *, first: bool) -> None:
        """Wait until `bell` is rung: by this object when messages may be due, or by a timer of the request.

        `first`: wake this request before the other requests, because it was woken in vain."""
        self._waiting[bell] = None
        self._waiting.move_to_end(bell, last=not first)
        try:
            await bell.heard()
        finally:
            self._waiting.pop(bell, None)
