"""A retry of a topic creation failed because the topic existed.

The node had not opened the new topic in time and asked for a retry. The client retried, and got the error that the
topic exists."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sandq.broker.controller import metadata_changes, topic_administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.node import run_node
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected


async def test_topic_creation_with_slow_opening_creates_topic_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (metadata_changes, topic_administration):
        monkeypatch.setattr(module, "LEADERS_WAIT_S", 0.05)
    async with run_node(small_config(tmp_path)) as node, connected(node) as api:
        opens, opened = trio.Event(), Reconciler._follow

        async def slow(self: Reconciler) -> None:
            await opens.wait()
            await opened(self)

        monkeypatch.setattr(Reconciler, "_follow", slow)
        made = await api.admin.create_topic("t", partitions=2, ttl="1h")
        assert (made.name, len(made.partitions), made.settings["ttl_ms"]) == ("t", 2, 3_600_000)
        assert "t" not in node.broker.catalog.topics
        opens.set()
        await api.produce("t", b"m")
