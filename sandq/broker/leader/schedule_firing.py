"""Fire the schedules of one partition while this node leads it.

Due schedules are read on the apply thread. They are planned on a separate thread, because each cron expression takes
about 50 us. Then their firings are proposed. The partition ignores repeated firings, so a deposed leader that still
fires schedules does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import DiskFull, SandqError
from sandq.model.logger import get_logger
from sandq.partition import commands as c
from sandq.partition.partition_status import Status
from sandq.partition.schedules.schedule import GRACE_MS, Schedule
from sandq.partition.schedules.schedule_queries import Stored
from sandq.schedules import planning
from sandq.schedules.recurrence import Recurrence

log = get_logger("sandq.broker")

FIRE_MOST: Final = 256
"""Maximum number of schedules in one command."""
FIRE_WORK: Final = 8192
"""Units of work charged for firing one schedule. Applying one byte of a batch costs one unit."""
DONE_MOST: Final = 8
"""Maximum number of ranges in which a schedule records the occurrences that fired while the clock was ahead."""
PAUSE_MS: Final = 20
"""Minimum time between two rounds, in ms.

Schedules that become due between two rounds fire together. The pause rarely delays a message: most messages are created
long before their time."""
RETRY_MS: Final = 50
"""Pause in ms before the next round, if a command was refused."""
FULL_MS: Final = 1000
"""Pause in ms between two rounds, while the disk is full."""
UNPLANNABLE_MS: Final = 1000
"""Pause in ms between two rounds, while this node cannot plan some of the due schedules."""


class ScheduleFiring:
    """Fires the due schedules of one partition, in rounds."""

    def __init__(
        self,
        host: RaftGroup,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        nursery: trio.Nursery,
        planning: trio.CapacityLimiter,
    ) -> None:
        """`planning`: limits the number of planning threads on this node."""
        self._host = host
        self._runner = runner
        self._clock = clock
        self._timers = timers
        self._nursery = nursery
        self._planning = planning
        self._is_working = False
        self._unplannable = frozenset[str]()
        """Names of due schedules that this node cannot plan."""
        self._earliest_ms = 0
        """Earliest time of the next round, in ms."""
        self._timer: Timer | None = None
        self._timer_ms: int | None = None

    def on_status(self, status: Status) -> None:
        """Set a timer for the next due schedule, or for the next planning after the clock was set back.

        Called after an entry was applied, and when this node starts to lead."""
        at_ms = 0 if _is_behind(status) else status.schedule_ms
        if at_ms is not None and not self._is_working and self._host.works:
            now_ms = self._clock.now_ms()
            # If the clock was set back, `_earliest_ms` may be far in the future: then wait at most `FULL_MS`.
            self._wake_at(max(at_ms, min(self._earliest_ms, now_ms + FULL_MS)))

    def _wake_at(self, at_ms: int) -> None:
        """Start a round at `at_ms`, unless a timer for an earlier time is set."""
        if self._timer_ms is not None and self._timer_ms <= at_ms:
            return

        def wake() -> None:
            self._timer = self._timer_ms = None
            if self._is_working:
                return  # the round in progress checks again when it ends
            if self._is_due() or _is_behind(self._host.status):
                self._is_working = True
                self._nursery.start_soon(self._fire)
            else:
                # The schedule that was due was changed or deleted in the meantime.
                self.on_status(self._host.status)

        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms, self._timer = at_ms, self._timers.at(at_ms, wake)

    async def _fire(self) -> None:
        """Fire all due schedules."""
        pause_ms = RETRY_MS
        try:
            while self._host.works and _is_behind(self._host.status):
                await self._plan_some()
            while self._is_due() and await self._fire_some() >= FIRE_MOST:
                pass
            pause_ms = UNPLANNABLE_MS if self._unplannable else PAUSE_MS
        except DiskFull:
            pause_ms = FULL_MS
        except SandqError:
            pass  # overloaded, or another node leads: the leader checks again
        self._is_working = False
        self._earliest_ms = self._clock.now_ms() + self._timers.pause_ms(pause_ms)
        self.on_status(self._host.status)

    def _is_due(self) -> bool:
        """Return whether a schedule is due and this node may fire it."""
        at_ms = self._host.status.schedule_ms
        return self._host.works and at_ms is not None and bool(at_ms <= self._clock.now_ms())

    async def _plan_some(self) -> None:
        """Plan a page of schedules again, for the time to which the partition's clock was set back."""
        now_ms, replica, behind = self._clock.now_ms(), self._host.replica, self._host.status.planned_to
        assert isinstance(replica, PartitionReplica)
        read = partial(_page, replica, behind)
        stored, behind = await self._runner.ask(read, group=self._host.number, patient=False)
        items = await trio.to_thread.run_sync(replan, stored, now_ms, limiter=self._planning)
        command, count = c.PlanSchedules(items, behind), len(items)
        await self._host.call(command, BEHIND, size=64 + 128 * count, work=FIRE_WORK * count + 64, messages=count)

    async def _fire_some(self) -> int:
        """Fire as many schedules as one command may contain. Return their number."""
        now_ms, replica = self._clock.now_ms(), self._host.replica
        assert isinstance(replica, PartitionReplica)
        # Schedules that cannot be planned stay due, and are read first. So read one additional row for each of them.
        read = partial(_due, replica, now_ms, FIRE_MOST + len(self._unplannable))
        stored = await self._runner.ask(read, group=self._host.number, patient=False)
        fires = await trio.to_thread.run_sync(plan, stored, now_ms, self._unplannable, limiter=self._planning)
        self._unplannable = frozenset([name for name, _ in stored]) - {fire[0] for fire in fires}
        count = len(fires)
        if not count:
            return 0
        command = c.FireSchedules(fires)
        await self._host.call(command, BEHIND, size=128 * count, work=FIRE_WORK * count, messages=2 * count)
        return count


def _due(replica: PartitionReplica, now_ms: int, most: int) -> list[Stored]:
    """Return due schedules, earliest first. Runs on the apply thread."""
    return replica.queries.schedules_due(now_ms, most)


def _page(replica: PartitionReplica, behind: str | None) -> tuple[list[Stored], str | None]:
    """Return the next page of schedules, ordered by name, and the position of the following page. Runs on the apply
    thread."""
    return replica.queries.schedule_page("", behind or None, FIRE_MOST)


def _is_behind(status: Status) -> bool:
    """Return whether schedules must be planned again because the partition's clock was set back."""
    return status.planned_to is not None and status.reset is None


def replan(stored: Sequence[Stored], now_ms: int) -> list[Any]:
    """Return the items that move schedules back to their next occurrence after `now_ms`.

    Omit schedules whose planned time would not become earlier."""
    items = []
    for name, row in stored:
        schedule = Schedule.load(name, row)
        if schedule.expected_ms is None:
            continue
        last_ms, done = schedule.last_ms or 0, schedule.done
        if schedule.gap is not None and schedule.gap[1] > now_ms:
            # The clock was set back to before the end of the gap of missed occurrences. So occurrences of the gap can
            # still fire. Later occurrences have fired already, while the clock was ahead: record these occurrences as
            # done.
            last_ms, *over = schedule.gap[0], [schedule.gap[1], last_ms]
            done = sorted([*done, *[one for one in over if one[0] <= one[1]]])[:DONE_MOST]
        try:
            recurrence = Recurrence.from_record(schedule.recurrence)
            after_ms = max(now_ms, last_ms)
            found = planning.first(name, recurrence, schedule.settings, schedule.fired, after_ms, done)
        except SandqError:
            continue  # the error is reported when the schedule fires
        if found.next_ms is not None and found.next_ms < schedule.expected_ms:
            seen = schedule.version, schedule.expected_ms
            items.append((name, *seen, found.next_ms, found.fire_ms, last_ms, done))
    return items


def plan(stored: Sequence[Stored], now_ms: int, unplannable: AbstractSet[str] = frozenset()) -> list[Any]:
    """Return the items of the command that fires these schedules.

    Omit the schedules that this node cannot plan. A node with other time zone data validated such a schedule when it
    was created. The schedule waits until such a node leads, or until this node is restarted with newer data.
    `unplannable`: names of the schedules that the previous call could not plan. Their errors are not logged again."""
    items = []
    for name, row in stored:
        schedule = Schedule.load(name, row)
        assert schedule.expected_ms is not None
        try:
            recurrence = Recurrence.from_record(schedule.recurrence)
            fired, settings, done = schedule.fired + 1, schedule.settings, schedule.done
            # A failover, or a short stall of a node, does not count as downtime.
            found = planning.following(name, recurrence, settings, fired, schedule.expected_ms, now_ms, done, GRACE_MS)
        except SandqError as error:
            if name not in unplannable:
                log.error(
                    "a schedule waits, because this node cannot plan it: give it the time zone data of the other nodes",
                    schedule=name,
                    error=error.message,
                )
            continue
        items.append((name, schedule.version, schedule.expected_ms, *found))
    return items
