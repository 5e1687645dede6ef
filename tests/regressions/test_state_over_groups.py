"""A message that only groups keep had the state of the first group, and was shown as waiting when it was ready."""

from __future__ import annotations

from pathlib import Path

from sandq.node import run_node
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, waits_until_trimmed, with_topic


async def test_state_over_groups_after_redrive_is_ready(tmp_path: Path) -> None:
    hand = HandClock()
    async with (
        run_node(small_config(tmp_path), clock=hand.guarded()) as node,
        connected(node) as api,
        with_topic(api, max_attempts=1, lease="1h"),
        api.subscribe("t", group="g", credit=1) as first,
        api.subscribe("t", group="h") as second,
    ):
        messages = api.messages("t")
        message_id = await api.produce("t", b"m")
        (message,) = await take(first, 1, ack=False)
        await message.nack(error="no")
        (held,) = await take(second, 1, ack=False)
        assert (await messages.get(message_id)).state == "leased"
        hand.forward(61)
        await waits_until_trimmed(api)
        assert (await messages.get(message_id)).state == "leased", "although it is dead for the other group"
        await held.ack()
        assert (await messages.get(message_id)).state == "dead"
        await api.produce("t", b"other")
        await take(first, 1, ack=False)  # this uses the last credit, so the redriven message stays ready
        await api.dead("t", "g").redrive()
        assert (await messages.get(message_id)).state == "ready"
