"""Reading continues at the end of an archive. If brokers have trimmed the next messages, this is always reported.

Requests of the job `sql` to the source (jobs/sql.py), with real brokers and without Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra sandq[spark] is not installed: make spark")

from sandq.errors import HistoryGone
from sandq.spark.datasource import BatchReader
from sandq.spark.source.options import parse_options
from sandq.testing import Broker, broker


@pytest.fixture
def node() -> Iterator[Broker]:
    with broker() as running:
        running.create_topic("t", delete_on_ack=False, retain="1h")
        yield running


def fill(node: Broker, numbers: range) -> None:
    with node.client() as client, client.producer("t") as producer:
        for number in numbers:
            producer.send(b"%d" % number)


def reading(node: Broker, start: str, **more: str) -> BatchReader:
    """Read as the job `sql` does, starting after this offset."""
    named = {"assign": json.dumps({"t": [0]}), "startingOffsets": json.dumps({"t": {"0": start}})}
    return BatchReader(parse_options({"sandq.bootstrap.servers": node.address, "view": "all", **named, **more}))


def read(reader: BatchReader) -> list[dict[str, Any]]:
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def test_messages_trimmed_after_the_archive_are_reported(node: Broker, caplog: pytest.LogCaptureFixture) -> None:
    fill(node, range(10))
    node.advance("1m")
    rows = read(reading(node, "earliest"))
    assert numbers(rows) == [*range(10)]
    last = rows[4]["offset"]
    assert numbers(read(reading(node, last)))[1:] == [*range(5, 10)]
    node.advance("5h")
    fill(node, range(10, 15))
    node.advance("1m")
    for more in ({}, {"minPartitions": "3"}, {"endingTimestamp": str(node.now_ms() - 3_600_000)}):
        with pytest.raises(HistoryGone, match=r"topic 't', partition 0: messages from .* were trimmed before they"):
            read(reading(node, last, **more))
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        assert numbers(read(reading(node, last, failOnDataLoss="false"))) == [*range(10, 15)]
    assert "were trimmed before they were read; reading continues after them" in caplog.text
    assert numbers(read(reading(node, "earliest"))) == [*range(10, 15)], (
        "without a start offset, nothing can be reported as lost"
    )
