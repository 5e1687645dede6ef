"""Tests of the warning about a topic that does not survive the loss of a node."""

from __future__ import annotations

import pytest

from sandq.client.json_format import topic_json
from sandq.protocol.replies import TWO_REPLICAS, Partition, TopicRecord


@pytest.mark.parametrize(("replicas", "warnings"), [(1, []), (2, [TWO_REPLICAS]), (3, [])])
def test_two_replicas_stop_with_either_node(replicas: int, warnings: list[str]) -> None:
    record = TopicRecord("t", 1, "timer", [Partition.of([0, 1, "a", ["a", "b"], False])], 1, replicas, {})
    assert record.warnings == warnings
    assert topic_json(record)["warnings"] == warnings
