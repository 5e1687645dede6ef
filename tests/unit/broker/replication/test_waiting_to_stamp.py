"""Tests of a leader whose clock is not reliable: it proposes nothing."""

from __future__ import annotations

import pytest

from sandq.broker.replication.node_log import Hooks, NodeLog
from sandq.model.errors import Unavailable
from sandq.model.limits import Limits
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.registered import register_node
from tests.support.storage.log_bed import SEGMENT_BYTES

STEPS = 100_000
"""Time in which a single node certainly becomes leader."""


def test_commands_are_not_stamped_while_the_clock_waits() -> None:
    reasons: list[str] = ["it was not compared"]
    stamps: list[int] = []

    def now_ms() -> int:
        stamps.append(1_800_000_000_000)
        return stamps[-1]

    def step() -> None:
        records, tasks = node_log.tick()
        node_log.applier.run(list(tasks))
        node_log.commit(records)
        node_log.applier.run(list(node_log.synced()))

    node_log = NodeLog(
        MemoryFiles(),
        MemoryStores(),
        node_id="n1",
        now_ms=now_ms,
        publish=lambda news: node_log.published(news),
        segment_bytes=SEGMENT_BYTES,
        limits=Limits(),
        hooks=Hooks(reason_to_wait=lambda host: next(iter(reasons), None)),
    )
    metadata = node_log.open_metadata()
    for _ in range(STEPS):
        step()
        if metadata.ready:
            break
    assert metadata.ready, "the node leads and answers reads"
    answers: list[object] = []
    with pytest.raises(Unavailable, match="it was not compared"):
        metadata.submit(register_node("n1", "store", {}), answers.append)
    reason = reasons.pop()
    metadata.submit(register_node("n1", "store", {}), answers.append)
    reasons.append(reason)
    step()
    assert isinstance(answers[0], Unavailable), "requests from before the wait are not proposed either"
    assert not stamps and not node_log.backlog.bytes
    reasons.clear()
    metadata.submit(register_node("n1", "store", {}), answers.append)
    step()
    step()
    assert len(answers) == 2 and not isinstance(answers[1], Exception) and len(stamps) == 1
