"""The source through Spark."""

from __future__ import annotations

from typing import Any

from sandq.testing import Broker


def fill(node: Broker, topic: str, values: range, **options: Any) -> None:
    with node.client() as client, client.producer(topic) as producer:
        for number in values:
            producer.send(b"%d" % number, key=b"k%d" % (number % 7), headers={"n": number, "t": "x"}, **options)


def test_a_batch_and_what_is_pending(spark: Any, node: Broker) -> None:
    node.create_topic("orders", partitions=3)
    fill(node, "orders", range(1000))
    fill(node, "orders", range(1000, 1500), delay="1h")
    node.advance("1m")
    read = spark.read.format("sandq").options(**{"sandq.bootstrap.servers": node.address, "subscribe": "orders"})
    rows = read.option("includeHeaders", "true").load().collect()
    assert sorted(int(row.value) for row in rows) == list(range(1000))
    assert {row.headers[0].key for row in rows} == {"n"}
    assert read.option("view", "pending").load().count() == 500
