"""Schedules that are changed while due occurrences are not sent yet."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sandq.broker.leader.schedule_firing import ScheduleFiring
from sandq.broker.requests.schedule_requests import ScheduleRequests
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, with_topic
from tests.support.waiting import until_answer

HOUR_MS = 3_600_000


async def test_update_waits_for_due_occurrences(
    timed: Serving, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Occurrences that were missed without a leader are sent later, even if a program changes the schedule
    immediately."""
    seen, fires, query = trio.Event(), ScheduleFiring._fire_some, ScheduleRequests._named

    async def fire_later(firing: ScheduleFiring) -> int:
        await seen.wait()
        return await fires(firing)

    async def recorded_query(queries: ScheduleRequests, *named: Any) -> Any:
        found = await query(queries, *named)
        seen.set()
        return found

    async with connected(timed) as api, with_topic(api):
        schedules = api.schedules("t")
        made = await schedules.create("s", b"old", every="1h", misfire="all")
        assert made.next_ms is not None
        monkeypatch.setattr(ScheduleFiring, "_fire_some", fire_later)
        hand.forward(3 * 3600 + 1)
        monkeypatch.setattr(ScheduleRequests, "_named", recorded_query)
        assert await schedules.create_many([{"name": "s", "value": b"new", "every": "1h", "misfire": "all"}]) == (
            0,
            1,
            0,
        )
        changed = await schedules.get("s")
        assert (changed.fired, changed.missed, changed.next_ms) == (3, 0, made.next_ms + 3 * HOUR_MS)


async def test_update_does_not_wait_for_occurrences_that_cannot_fire(
    timed: Serving, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(firing: ScheduleFiring) -> int:
        return 0

    async with connected(timed) as api, with_topic(api):
        schedules = api.schedules("t")
        made = await schedules.create("s", b"old", every="1h")
        assert made.next_ms is not None
        monkeypatch.setattr(ScheduleFiring, "_fire_some", never)
        hand.forward(3601)
        changed = await until_answer(lambda: schedules.update("s", value=b"new"))
        assert (changed.fired, changed.next_ms) == (1, made.next_ms + HOUR_MS)
