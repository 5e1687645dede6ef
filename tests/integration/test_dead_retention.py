"""Dead letters are removed by age and number, seen by the client and the metrics."""

from __future__ import annotations

from functools import partial

import pytest

from sandq.errors import InvalidSetting
from sandq.node.running import Serving
from tests.integration.test_dead_letters import bury, counts_are, letters
from tests.integration.test_metrics import scrape
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected
from tests.support.waiting import until_answer


async def test_dead_letters_are_removed_when_their_time_has_passed(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", max_attempts=1, dead_retention="30d", group_ttl="60d")
        await bury(api, 3)
        hand.forward(29 * 86_400)
        await bury(api, 1, first=3)
        await counts_are(api, {"nacked": 4})
        hand.forward(86_401)
        await counts_are(api, {"nacked": 1})
        assert [letter.value for letter in await letters(api)] == [b"3"]
        (row,) = await api.admin.groups("t")
        assert (row["dead"], row["dead_removed"]) == (1, 3)
        found = await until_answer(
            partial(scrape, timed), lambda found: found("group_dead_removed_total", topic="t", group="g") == 3
        )
        assert found("group_dead", topic="t", group="g") == 1


async def test_newest_dead_letters_stay(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", max_attempts=1)
        await bury(api, 5)
        await counts_are(api, {"nacked": 5})
        await api.admin.update_topic("t", max_dead_letters=2)
        hand.forward(10)
        await counts_are(api, {"nacked": 2})
        assert (await api.admin.topic("t")).settings["max_dead_letters"] == 2


async def test_retention_below_the_lease_is_refused(timed: Serving) -> None:
    async with connected(timed) as api:
        with pytest.raises(InvalidSetting, match="dead_retention: the lease"):
            await api.admin.create_topic("t", lease="1h", dead_retention="10m")
        await api.admin.create_topic("t", lease="1m", dead_retention="10m")
        with pytest.raises(InvalidSetting, match="dead_retention: the lease"):
            await api.admin.update_topic("t", lease="1h")
