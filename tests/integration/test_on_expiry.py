"""Messages that expire in a group with `on_expiry: drop`, seen by the client and the metrics."""

from __future__ import annotations

from functools import partial

import pytest

from sandq.errors import InvalidSetting
from sandq.node.running import Serving
from tests.integration.test_metrics import scrape
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, take
from tests.support.waiting import until_answer


async def test_expired_messages_are_dropped_and_counted(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", ttl="10m", on_expiry="drop", retention="1d")
        async with api.subscribe("t", group="g") as subscription:
            late, handled = await api.produce("t", b"late", delay="1h"), await api.produce("t", b"handled")
            await take(subscription, 1)
            told = await api.messages("t").why(late)
            (group,) = told["groups"]
            assert group["expires_ms"] == told["deliver_ms"] + 600_000 and group["on_expiry"] == "drop"
        hand.forward(4201)
        found = await until_answer(
            partial(scrape, timed), lambda found: found("group_dropped_total", topic="t", group="g") == 1
        )
        assert found("group_dead", topic="t", group="g") == 0
        assert await api.dead("t", "g").counts() == {}
        (row,) = await api.admin.groups("t")
        assert (row["dropped"], row["dead"], row["ready"]) == (1, 0, 0)
        reasons = [(await api.messages("t").why(one))["groups"][0]["reason"] for one in (late, handled)]
        assert reasons[0].startswith("it was acked, or it expired and was dropped") and reasons[1] == "it was acked"


async def test_group_overrides_its_topic(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", ttl="10m", on_expiry="drop")
        async with api.subscribe("t", group="archive"), api.subscribe("t", group="app"):
            pass
        await api.admin.update_group("t", "archive", on_expiry="dead")
        await api.produce("t", b"late")
        hand.forward(601)
        await until_answer(lambda: api.dead("t", "archive").counts(), lambda counts: counts == {"expired": 1})
        assert {row["group"]: row["dropped"] for row in await api.admin.groups("t")} == {"archive": 0, "app": 1}
        assert (await api.admin.topic("t")).settings["on_expiry"] == "drop"


async def test_compacted_topic_and_its_groups_refuse_it(timed: Serving) -> None:
    async with connected(timed) as api:
        with pytest.raises(InvalidSetting, match="its ttl deletes keys"):
            await api.admin.create_topic("k", kind="compacted", on_expiry="drop")
        await api.admin.create_topic("k", kind="compacted")
        async with api.subscribe("k", group="g"):
            with pytest.raises(InvalidSetting, match="its ttl deletes keys"):
                await api.admin.update_group("k", "g", on_expiry="drop")
