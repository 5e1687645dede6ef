"""Lets the schedules of one partition fire while this node leads it.

What is due is looked up on the apply thread, planned in a thread of its own, for expressions cost some 50 us each, and
proposed. The partition does nothing of it twice, so a leader that is late, or two of them, do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

import structlog
import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import DiskFull, SandqError
from sandq.partition import commands as c
from sandq.partition.partition_status import Status
from sandq.partition.schedules.schedule import GRACE_MS, Schedule
from sandq.partition.schedules.schedule_queries import Stored
from sandq.schedules import planning
from sandq.schedules.recurrence import Recurrence

log = structlog.get_logger("sandq.broker")

FIRE_MOST: Final = 256
"""Schedules of one command."""
FIRE_WORK: Final = 8192
"""To let one fire costs as much as so many bytes of a batch."""
DONE_MOST: Final = 8
"""Stretches of occurrences to come that are over, of a schedule."""
PAUSE_MS: Final = 20
"""Between two rounds: what fires meanwhile fires together. Most messages are made long before their time."""
RETRY_MS: Final = 50
"""After a refusal (overload, leadership not settled)."""
FULL_MS: Final = 1000
"""While the disk has no room."""
STRANGE_MS: Final = 1000
"""While some are due that this node cannot go by."""


class ScheduleFiring:
    def __init__(
        self,
        host: RaftGroup,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        nursery: trio.Nursery,
        planning: trio.CapacityLimiter,
    ) -> None:
        """`planning`: of the threads in which partitions of this node plan."""
        self._host = host
        self._runner = runner
        self._clock = clock
        self._timers = timers
        self._nursery = nursery
        self._planning = planning
        self._is_working = False
        self._strange = frozenset[str]()
        """Schedules that are due and that this node cannot go by."""
        self._earliest_ms = 0
        """Before then is no other round."""
        self._timer: Timer | None = None
        self._timer_ms: int | None = None

    def look(self, status: Status) -> None:
        """Something was applied, or this node began to lead: set a timer for what is due next."""
        at_ms = 0 if _is_behind(status) else status.schedule_ms
        if at_ms is not None and not self._is_working and self._host.works:
            now_ms = self._clock.now_ms()
            # The clock may have been set back since.
            self._wake_at(max(at_ms, min(self._earliest_ms, now_ms + FULL_MS)))

    def _wake_at(self, at_ms: int) -> None:
        if self._timer_ms is not None and self._timer_ms <= at_ms:
            return

        def wake() -> None:
            self._timer = self._timer_ms = None
            if self._is_working:
                return  # and looks again when it has done
            if self._is_due() or _is_behind(self._host.status):
                self._is_working = True
                self._nursery.start_soon(self._fire)
            else:
                # What was to fire now fires later since, or no more.
                self.look(self._host.status)

        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms, self._timer = at_ms, self._timers.at(at_ms, wake)

    async def _fire(self) -> None:
        """Fire what is due."""
        again_ms = RETRY_MS
        try:
            while self._host.works and _is_behind(self._host.status):
                await self._plan_some()
            while self._is_due() and await self._fire_some() >= FIRE_MOST:
                pass
            again_ms = STRANGE_MS if self._strange else PAUSE_MS
        except DiskFull:
            again_ms = FULL_MS
        except SandqError:
            pass  # overloaded, or another node leads: who leads looks again
        self._is_working = False
        self._earliest_ms = self._clock.now_ms() + self._timers.pause_ms(again_ms)
        self.look(self._host.status)

    def _is_due(self) -> bool:
        at_ms = self._host.status.schedule_ms
        return self._host.works and at_ms is not None and bool(at_ms <= self._clock.now_ms())

    async def _plan_some(self) -> None:
        """Have a page of schedules go by the time that the partition's clock was set back to."""
        now_ms, replica, behind = self._clock.now_ms(), self._host.replica, self._host.status.planned_to
        assert isinstance(replica, PartitionReplica)
        look = partial(_page, replica, behind)
        stored, behind = await self._runner.ask(look, group=self._host.number, patient=False)
        items = await trio.to_thread.run_sync(plan_anew, stored, now_ms, limiter=self._planning)
        command, count = c.PlanSchedules(items, behind), len(items)
        await self._host.call(command, BEHIND, size=64 + 128 * count, work=FIRE_WORK * count + 64, messages=count)

    async def _fire_some(self) -> int:
        """Fire as many as one command has. How many there were."""
        now_ms, replica = self._clock.now_ms(), self._host.replica
        assert isinstance(replica, PartitionReplica)
        # Those that stay due come first each time.
        look = partial(_due, replica, now_ms, FIRE_MOST + len(self._strange))
        stored = await self._runner.ask(look, group=self._host.number, patient=False)
        fires = await trio.to_thread.run_sync(plan, stored, now_ms, self._strange, limiter=self._planning)
        self._strange = frozenset([name for name, _ in stored]) - {fire[0] for fire in fires}
        count = len(fires)
        if not count:
            return 0
        command = c.FireSchedules(fires)
        await self._host.call(command, BEHIND, size=128 * count, work=FIRE_WORK * count, messages=2 * count)
        return count


def _due(replica: PartitionReplica, now_ms: int, most: int) -> list[Stored]:
    return replica.queries.schedules_due(now_ms, most)


def _page(replica: PartitionReplica, behind: str | None) -> tuple[list[Stored], str | None]:
    return replica.queries.schedule_page("", behind or None, FIRE_MOST)


def _is_behind(status: Status) -> bool:
    """Whether schedules do not go by the partition's time yet, which was set back."""
    return status.planned_to is not None and status.reset is None


def plan_anew(stored: Sequence[Stored], now_ms: int) -> list[Any]:
    """Return the items that put the next occurrences of schedules where they are after an instant, as far as they stand
    behind that."""
    items = []
    for name, row in stored:
        schedule = Schedule.load(name, row)
        if schedule.expected_ms is None:
            continue
        last_ms, done = schedule.last_ms or 0, schedule.done
        if schedule.gap is not None and schedule.gap[1] > now_ms:
            # What was left out is yet to come. What fired behind that is over, and its messages come at their times.
            last_ms, *over = schedule.gap[0], [schedule.gap[1], last_ms]
            done = sorted([*done, *[one for one in over if one[0] <= one[1]]])[:DONE_MOST]
        try:
            recurrence = Recurrence.from_record(schedule.recurrence)
            after_ms = max(now_ms, last_ms)
            found = planning.first(name, recurrence, schedule.settings, schedule.fired, after_ms, done)
        except SandqError:
            continue  # that is told when it fires
        if found.next_ms is not None and found.next_ms < schedule.expected_ms:
            seen = schedule.version, schedule.expected_ms
            items.append((name, *seen, found.next_ms, found.fire_ms, last_ms, done))
    return items


def plan(stored: Sequence[Stored], now_ms: int, strange: AbstractSet[str] = frozenset()) -> list[Any]:
    """Return the items of the command that lets these schedules fire, but of those that this node cannot go by: each
    was checked when it was made, by a node which knows other zones. They wait until such a one leads, or this one is
    started with newer data. `strange`: those of which that is known."""
    items = []
    for name, row in stored:
        schedule = Schedule.load(name, row)
        assert schedule.expected_ms is not None
        try:
            recurrence = Recurrence.from_record(schedule.recurrence)
            fired, settings, done = schedule.fired + 1, schedule.settings, schedule.done
            # A leader that died, or a node that stood still for a moment, is no downtime.
            found = planning.following(name, recurrence, settings, fired, schedule.expected_ms, now_ms, done, GRACE_MS)
        except SandqError as error:
            if name not in strange:
                log.error(
                    "a schedule waits, for this node cannot go by it: give it the zone data of the others",
                    schedule=name,
                    error=error.message,
                )
            continue
        items.append((name, schedule.version, schedule.expected_ms, *found))
    return items
