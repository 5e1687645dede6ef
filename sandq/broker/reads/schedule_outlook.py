"""Count the messages that the schedules of a partition will create in the future."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from sandq.broker.reads.linearizable_reads import PAGE_WORK, LinearizableReads, Output
from sandq.broker.replication.raft_group import RaftGroup
from sandq.partition.schedules.schedule import Schedule
from sandq.partition.schedules.schedule_queries import PAGE_BYTES, Stored
from sandq.schedules.outlook import Ahead, Outlook, count_ahead
from sandq.schedules.recurrence import Recurrence

SCHEDULES_MOST: Final = 1000
"""Maximum number of schedules of a partition that are counted. If there are more, those that fire first are counted."""


class ScheduleOutlooks:
    """Answers one request at a time on this node, because a request may occupy a thread for half a second."""

    def __init__(self, reads: LinearizableReads) -> None:
        self._reads = reads
        self._thread = trio.CapacityLimiter(1)

    async def ask(self, host: RaftGroup, output: Output, first_ms: int, unit_ms: int, count: int) -> Outlook:
        """Count the messages that the schedules of a partition will send, for each of `count` units of time from
        `first_ms` on. `unit_ms`: length of a unit."""
        if not host.status.schedules:
            return Outlook({}, True)
        stop_ms = first_ms + unit_ms * count
        stored = await self._reads.ask(
            host,
            lambda replica: replica.queries.schedules_due(stop_ms - 1, SCHEDULES_MOST),
            1,
            output,
            _size,
            PAGE_WORK,
        )
        found = await trio.to_thread.run_sync(_count, stored, first_ms, unit_ms, count, limiter=self._thread)
        is_all = len(stored) < SCHEDULES_MOST and _size(stored) < PAGE_BYTES
        return found if is_all else found._replace(is_complete=False)


def _count(stored: Sequence[Stored], first_ms: int, unit_ms: int, count: int) -> Outlook:
    """Count the occurrences of stored schedules. Runs on a thread."""
    return count_ahead(map(_ahead, stored), first_ms, unit_ms, count)


def _ahead(stored: Stored) -> Ahead:
    """Return the input of `count_ahead` for a schedule.

    If the message of the next occurrence exists already, that occurrence is not counted."""
    schedule = Schedule.load(*stored)
    assert schedule.expected_ms is not None
    is_made, most = schedule.made is not None, schedule.settings.get("count")
    left = None if most is None else max(most - schedule.fired - is_made, 0)
    after_ms = schedule.expected_ms if is_made else schedule.expected_ms - 1
    return Ahead(schedule.name, Recurrence.from_record(schedule.recurrence), after_ms, left)


def _size(stored: Sequence[Stored]) -> int:
    """Return the bytes of stored schedules."""
    return sum([len(row) for _, row in stored])
