"""After the log was trimmed, a moved message could not be found by its id.

The partition forgot the new offset of the message together with its row in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandq
from sandq.node import run_node
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, refusals, take, waits_until_trimmed


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[sandq.Client]:
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        yield client


async def test_moved_message_after_delivery_is_gone(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    message_id = await api.produce("t", b"m", unique_key="u", delay="1h")
    await messages.move(message_id, delay=0)
    async with api.subscribe("t", group="g") as subscription:
        await take(subscription, 1)
    await waits_until_trimmed(api)
    assert await refusals(messages, message_id, "u") == {"gone"}


async def test_moved_message_after_death_is_dead(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=1)
    messages = api.messages("t")
    message_id = await api.produce("t", b"m", unique_key="u", delay="1h")
    await messages.move(message_id, delay=0)
    async with api.subscribe("t", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.nack(error="no")
    await waits_until_trimmed(api)
    assert await refusals(messages, message_id, "u") == {"dead"}
    found = await messages.get(message_id)
    assert (found.id, found.offset, found.state, found.value) == (message_id, message.offset, "dead", b"m")
