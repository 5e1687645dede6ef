"""What a node answers to what needs a higher feature level than its cluster's, as far as it knows that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandq.broker.replication.node_log import NodeLog
from sandq.metadata.commands import RaiseFeatureLevel, RegisterNode
from sandq.model.errors import Conflict, Unavailable
from sandq.model.features import Levels
from sandq.model.limits import Limits
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores

STEPS = 100_000
"""More than it takes to lead alone."""


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


def test_not_yet_and_no_are_told_apart() -> None:
    node_log = NodeLog(
        MemoryFiles(),
        MemoryStores(),
        node_id="n1",
        now_ms=lambda: 1_800_000_000_000,
        publish=lambda news: node_log.published(news),
        limits=Limits(),
        levels=Levels(1, 2),
    )
    assert node_log.feature_level is None
    metadata = node_log.open_metadata()
    node_log.check_level(1)
    with pytest.raises(Unavailable, match="does not know yet"):
        node_log.check_level(2)  # it may have been allowed before this node was killed
    with pytest.raises(Conflict, match="needs feature level 3, and the cluster is at 1"):
        node_log.check_level(3)
    _until(node_log, lambda: metadata.ready)
    with pytest.raises(Unavailable, match="about to come to feature level 2"):
        node_log.check_level(2)  # no node is registered yet
    with pytest.raises(Conflict, match="needs feature level 3"):
        node_log.check_level(3)
    results: list[object] = []
    metadata.submit(RegisterNode("n1", "store", {}, highest_level=2), results.append)
    _until(node_log, lambda: len(results) == 1)
    with pytest.raises(Unavailable, match="about to come to feature level 2"):
        node_log.check_level(2)  # a cluster that was just formed, say
    with pytest.raises(Conflict, match="needs feature level 3"):
        node_log.check_level(3)
    metadata.submit(RaiseFeatureLevel(2), results.append)
    _until(node_log, lambda: len(results) == 2)
    assert results[1] == 2
    node_log.check_level(2)
