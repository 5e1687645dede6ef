"""The list of a group's consumers, with subscriptions or leases, and the messages of each."""

from __future__ import annotations

import pytest

import sandq
from sandq.errors import UnknownGroup, UnknownTopic
from sandq.node.running import Serving
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


async def test_consumers_of_a_group_have_a_row_each(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    began_ms = node.broker.clock.now_ms()
    async with (
        api.subscribe("t", group="g", consumer_id="ada", credit=10) as ada,
        api.subscribe("t", group="other", consumer_id="eve") as _,
    ):
        for number in range(4):
            await api.produce("t", b"%d" % number, partition=number % 2)
        held = await take(ada, 4, ack=False)
        found = await api.admin.consumers("t", "g")
        assert found.left_out == 0
        (row,) = found.consumers
        assert (row.consumer, row.partitions, row.messages, row.credit) == ("ada", 2, 4, 6)
        assert row.address is not None and row.address.startswith("127.0.0.1")
        assert row.since_ms is not None and row.leased_ms is not None
        assert began_ms <= row.since_ms <= row.leased_ms <= node.broker.clock.now_ms()
        for message in held[1:]:
            await message.ack()
        (row,) = (
            await until_answer(lambda: api.admin.consumers("t", "g"), lambda one: one[0][0].messages == 1)
        ).consumers
        await api.produce("t", b"for bob", partition=0)
    leased = await api.leases("t", "g").take(5, wait=10)
    (row,) = (await api.admin.consumers("t", "g")).consumers
    assert row.messages == len(leased) and row.partitions == 0, "a consumer without subscription has no credit"
    assert (row.address, row.since_ms, row.credit) == (None, None, None)


async def test_consumers_of_no_group_or_topic(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    with pytest.raises(UnknownGroup, match="'g'"):
        await api.admin.consumers("t", "g")
    with pytest.raises(UnknownTopic, match="'u'"):
        await api.admin.consumers("u", "g")
