"""Costs of messages and rates with a unit, through a real node whose clock the test moves."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidRequest, InvalidSetting
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


async def test_message_shows_its_cost(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    first = await api.produce("t", b"a", cost=1200)
    async with api.producer("t") as producer:
        await producer.send(b"b", cost=1, delay="1h")
        await producer.send_many([b"c", {"value": b"d", "cost": 7}], cost=3, delay="1h")
    messages = api.messages("t")
    assert (await messages.get(first)).cost == 1200
    found = {one.value: one.cost async for one in messages.list(values=True)}
    assert found == {b"a": 1200, b"b": None, b"c": 3, b"d": 7}
    assert (await messages.why(first))["cost"] == 1200


async def test_ack_and_schedule_send_messages_with_a_cost(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    await api.admin.create_topic("then")
    await api.produce("t", b"a")
    async with api.subscribe("t", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.ack(then=[sandq.Outgoing(b"next", topic="then", cost=40, delay="1h")])
    listed = await until_answer(lambda: costs_of(api, "then"), bool)
    assert listed == [40]
    schedules = api.schedules("then")
    await schedules.create("s", b"m", every="1h", cost=5)
    assert (await schedules.get("s")).cost == 5
    assert (await schedules.update("s", cost=6)).cost == 6
    assert (await schedules.update("s", cost=None)).cost is None


async def costs_of(api: sandq.Client, topic: str) -> list[int | None]:
    return [one.cost async for one in api.messages(topic).list()]


async def test_rate_counts_costs(api: sandq.Client) -> None:
    """One second's worth of a rate of one token a day is one token. So the second message waits."""
    await api.admin.create_topic("t", partitions=1)
    await api.admin.limit_group("t", "g", rate="1/d", burst=10, unit="tokens")
    await api.produce("t", b"a", cost=9)
    waiting = await api.produce("t", b"b", cost=20)
    async with api.subscribe("t", group="g", credit=10) as subscription:
        (message,) = await take(subscription, 1)
        assert message.value == b"a"
        reason = await until_answer(lambda: reason_of(api, waiting), lambda reason: "needs 10" in reason)
        assert reason.startswith("it waits for the rate of the group, 1/d tokens: the next message needs 10 and 1 are ")
    (row,) = await api.admin.groups("t")
    assert (row["limits"]["rate"], row["limits"]["unit"], row["limits"]["burst"]) == ("1/d", "tokens", 10)


async def reason_of(api: sandq.Client, message_id: str) -> str:
    (group,) = (await api.messages("t").why(message_id))["groups"]
    reason: str = group["reason"]
    return reason


@pytest.mark.parametrize("cost", [0, -1, 10**9 + 1, 1.5, "many", True])
async def test_wrong_cost_is_refused(api: sandq.Client, cost: Any) -> None:
    await api.admin.create_topic("t")
    with pytest.raises(InvalidRequest, match=r"^cost: "):
        await api.produce("t", b"a", cost=cost)


async def test_compacted_topic_takes_no_cost(api: sandq.Client) -> None:
    await api.admin.create_topic("t", kind="compacted")
    with pytest.raises(InvalidRequest, match="cost: this is a compacted topic"):
        await api.produce("t", b"a", key="k", cost=2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"unit": "tokens"}, "unit: it goes with a rate only"),
        ({"unit": "tokens", "max_in_flight": 3}, "unit: it goes with a rate only"),
        ({"rate": "1/s", "unit": "two words"}, "unit: a name of up to 32 letters"),
        ({"rate": "1/s", "unit": ""}, "unit: a name of up to 32 letters"),
        ({"rate": "1/s", "unit": "x" * 33}, "unit: a name of up to 32 letters"),
        ({"rate": "1/s", "unit": 7}, "unit: a name of up to 32 letters"),
    ],
)
async def test_wrong_unit_is_refused(api: sandq.Client, given: dict[str, Any], text: str) -> None:
    await api.admin.create_topic("t")
    with pytest.raises(InvalidSetting, match=text):
        await api.admin.limit_group("t", "g", **given)
