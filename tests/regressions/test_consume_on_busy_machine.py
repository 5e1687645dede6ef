"""On a busy machine, `sandctl consume` missed messages that had been pushed, and printed nothing."""

from __future__ import annotations

import pytest

import sandctl.commands.consume
import sandq
from tests.integration.conftest import api, node

__all__ = ["api", "node"]


async def test_consume_after_long_step_finds_pushed_messages(
    api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandctl.commands.consume, "PAUSE_S", 0.0)  # as if the pushes arrived just after the pause
    monkeypatch.setattr("sandq.client.consumer.subscription.YIELD_S", -1.0)  # as if every step took long
    await api.admin.create_topic("t")
    sent = [b"a", b"b", b"c"]
    for value in sent:
        await api.produce("t", value)
    async with api.subscribe("t", group="g") as subscription:
        source = sandctl.commands.consume._until_none_can_be_leased(
            subscription, [api.leases("t", "g")], {"start": "earliest"}
        )
        got = []
        async for message, settle in source:
            got.append(message.value)
            await settle()
    assert sorted(got) == sent
