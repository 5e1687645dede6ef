"""Messages of an idle partition become due at their time, and are shown as due."""

from __future__ import annotations

from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, with_topic


async def test_due_message_is_shown_as_ready(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api):
        message_id = await api.produce("t", b"m", delay="1h")
        messages = api.messages("t")
        assert (await messages.get(message_id)).state == "delayed"
        hand.forward(3601)
        assert (await messages.get(message_id)).state == "ready"
        assert (await messages.why(message_id))["state"] == "ready"
        assert [message.id async for message in messages.list(state="ready")] == [message_id]
        assert [message.id async for message in messages.list(state="delayed")] == []


async def test_lag_and_forecast(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api, partitions=2):
        for partition in (0, 1):
            await api.produce("t", b"m", delay="1h", partition=partition)
        assert await api.leases("t", "g").take() == []
        assert sum(row["lag"] for row in await api.admin.groups("t")) == 0
        hand.forward(3601)
        assert sum(row["lag"] for row in await api.admin.groups("t")) == 2
        assert (await api.admin.forecast("t", "hour", 24)).buckets == []
