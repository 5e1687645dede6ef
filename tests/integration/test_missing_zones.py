"""A node leads schedules in a zone that is missing in its zone data."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from sandq.model.errors import InvalidRequest
from sandq.node.running import Serving
from sandq.schedules import recurrence
from sandq.schedules.zones import zone
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, with_topic
from tests.support.waiting import until_answer

NEW = "America/Coyhaique"
"""Name of a zone that is missing in older zone data."""


def older(name: str) -> ZoneInfo:
    if name == NEW:
        raise InvalidRequest(f'zone: "{name}" is not known')
    return zone(name)


async def test_schedule_waits_until_a_node_knows_its_zone(
    timed: Serving, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(timed) as api, with_topic(api):
        schedules = api.schedules("t")
        for name, where in (("a", NEW), ("b", "UTC")):
            await schedules.create(name, b"", cron="0 * * * *", zone=where, misfire="all")
        with monkeypatch.context() as patched:
            patched.setattr(recurrence, "zone", older)
            # other schedules continue meanwhile
            for fired in (1, 2, 3):
                hand.forward(3600)
                await until_answer(lambda: schedules.get("b"), lambda b, fired=fired: b.fired == fired)
            waiting = await schedules.get("a")
            assert (waiting.fired, waiting.state) == (0, "active")
            assert not (await api.admin.forecast("t", unit="hour", count=5)).is_complete
        hand.forward(1)
        caught_up = await until_answer(lambda: schedules.get("a"), lambda a: a.fired == 3)
        assert [one.outcome for one in caught_up.history] == ["sent"] * 3 and caught_up.missed == 0
