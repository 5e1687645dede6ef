"""The source through Spark."""

from __future__ import annotations

from typing import Any

from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, reading, values


def test_a_batch_and_what_is_pending(spark: Any, node: Broker) -> None:
    node.create_topic("orders", partitions=3)
    fill(node, "orders", range(1000))
    fill(node, "orders", range(1000, 1500), delay="1h")
    node.advance("1m")
    rows = reading(spark.read, node, subscribe="orders", includeHeaders=True).load().collect()
    assert sorted(int(row.value) for row in rows) == [*range(1000)]
    assert {(pair.key, pair.value) for row in rows for pair in row.headers} >= {("t", b"x"), ("n", b"7")}
    assert {row.partition for row in rows} == {0, 1, 2}
    assert len({row.offset for row in rows}) == 1000 and all(row.offset == row.message_id for row in rows)
    assert values(reading(spark.read, node, subscribe="orders", view="pending").load()) == [*range(1000, 1500)]
    assert reading(spark.read, node, subscribe="orders", view="all", minPartitions=8).load().count() == 1500
