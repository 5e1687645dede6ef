"""Tests of replies to requests that need a higher feature level than the node knows for the cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandq.broker.replication.node_log import NodeLog
from sandq.metadata.commands import RaiseFeatureLevel
from sandq.model.errors import Conflict, Unavailable
from sandq.model.features import FIRST_LEVEL, Levels
from sandq.model.limits import Limits
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.registered import register_node
from tests.support.storage.log_bed import SEGMENT_BYTES

STEPS = 100_000
"""Time in which a single node certainly becomes leader."""


def step(node_log: NodeLog) -> None:
    records, tasks = node_log.tick()
    node_log.applier.run(list(tasks))
    node_log.commit(records)
    node_log.applier.run(list(node_log.synced()))


def _until(node_log: NodeLog, is_so: Callable[[], bool]) -> None:
    for _ in range(STEPS):
        if is_so():
            return
        step(node_log)
    raise AssertionError("it never came to that")


def test_unknown_level_is_retriable_and_unsupported_level_is_refused() -> None:
    next_level, later = FIRST_LEVEL + 1, FIRST_LEVEL + 2
    node_log = NodeLog(
        MemoryFiles(),
        MemoryStores(),
        node_id="n1",
        now_ms=lambda: 1_800_000_000_000,
        publish=lambda news: node_log.published(news),
        segment_bytes=SEGMENT_BYTES,
        limits=Limits(),
        levels=Levels(FIRST_LEVEL, next_level),
    )
    assert node_log.feature_level is None
    metadata = node_log.open_metadata()
    node_log.check_level(FIRST_LEVEL)
    with pytest.raises(Unavailable, match="does not know the cluster's feature level yet"):
        node_log.check_level(next_level)  # the level may have been allowed before this node was killed
    with pytest.raises(Conflict, match=f"needs feature level {later}, and the cluster is at {FIRST_LEVEL}"):
        node_log.check_level(later)
    _until(node_log, lambda: metadata.ready)
    with pytest.raises(Unavailable, match=f"about to reach feature level {next_level}"):
        node_log.check_level(next_level)  # no node is registered yet
    with pytest.raises(Conflict, match=f"needs feature level {later}"):
        node_log.check_level(later)
    results: list[object] = []
    metadata.submit(register_node("n1", "store", {}, highest_level=next_level), results.append)
    _until(node_log, lambda: len(results) == 1)
    with pytest.raises(Unavailable, match=f"about to reach feature level {next_level}"):
        node_log.check_level(next_level)  # for example a cluster that was just formed
    with pytest.raises(Conflict, match=f"needs feature level {later}"):
        node_log.check_level(later)
    metadata.submit(RaiseFeatureLevel(next_level), results.append)
    _until(node_log, lambda: len(results) == 2)
    assert results[1] == next_level
    node_log.check_level(next_level)
