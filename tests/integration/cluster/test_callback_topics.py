"""Topics of callbacks in a cluster: a node that does not know a topic asks the others before it refuses a message."""

from __future__ import annotations

from pathlib import Path

import pytest

import sandq
from sandq.errors import InvalidRequest
from sandq.model.message_targets import PUSH_HEADER
from tests.support.nodes.three import three_nodes
from tests.support.waiting import until_holds

URL = "https://shop.example/"


async def test_unknown_topic_of_a_callback_is_refused_by_each_request(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_holds(lambda: len(nodes.running) == 3)
        await client.admin.create_topic("calls", partitions=3, replicas=3, push_targets=True)
        unknown, schedules = sandq.PushTarget(URL, callback="done"), client.schedules("calls")
        header = {PUSH_HEADER: unknown.text()}
        held = await client.produce("calls", b"x", delay="1h")
        for partition in range(3):
            with pytest.raises(InvalidRequest, match="there is no topic 'done'"):
                await client.produce("calls", b"x", partition=partition, push=unknown)
        with pytest.raises(InvalidRequest, match="there is no topic 'done'"):
            await client.messages("calls").update(held, headers=header)
        with pytest.raises(InvalidRequest, match="there is no topic 'done'"):
            await schedules.create("daily", b"x", cron="0 9 * * *", headers=header)
        await client.produce("calls", b"x")
        async with client.subscribe("calls", group="g", credit=1) as subscription:
            async for message in subscription:
                with pytest.raises(InvalidRequest, match="there is no topic 'done'"):
                    await message.ack(then=[sandq.Outgoing(b"x", push=unknown)])
                break
        await client.admin.create_topic("done", replicas=3)
        for partition in range(3):
            await client.produce("calls", b"x", partition=partition, push=unknown)
        await schedules.create("daily", b"x", cron="0 9 * * *", headers=header)
