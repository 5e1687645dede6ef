"""Tests of the list of topics for a backup."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.backups.backups import Backups
from sandq.model.errors import Unavailable
from sandq.model.features import FIRST_LEVEL
from sandq.protocol.requests_backup import BackupTopics
from sandq.server.handlers import backups as handler


def _asked(catch_up: Any) -> tuple[Any, dict[str, Any]]:
    """A node that knows topic `a` and catches up with the other topics."""
    topics: dict[str, Any] = {}
    none: Any = None
    catalog: Any = SimpleNamespace(catch_up=lambda: catch_up(topics))
    broker = SimpleNamespace(
        backups=Backups(catalog, none, none),
        metadata=SimpleNamespace(topics=topics, feature_level=FIRST_LEVEL),
        clock=SimpleNamespace(now_ms=lambda: 5),
    )
    entrance = SimpleNamespace(access=SimpleNamespace(sees=lambda name: False))
    info = SimpleNamespace(cluster_uuid="u", cluster_name="c", version="0")
    return SimpleNamespace(broker=broker, entrance=entrance, info=info), topics


async def test_topic_learned_late_is_counted_as_hidden() -> None:
    async def heard(topics: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        topics["late"] = object()

    at, _ = _asked(heard)
    assert (await handler._topics(at, BackupTopics(None, 10)))["hidden"] == 1


async def test_topic_list_without_leader_is_unavailable(autojump_clock: Any) -> None:
    async def never(topics: dict[str, Any]) -> None:
        await trio.sleep_forever()

    at, _ = _asked(never)
    with pytest.raises(Unavailable, match="current list of topics"):
        await handler._topics(at, BackupTopics(None, 10))
    assert trio.current_time() < 10
