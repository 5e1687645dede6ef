"""A topic is deleted and created again under its name while Spark reads: rows of the two are never mixed.

The test calls the readers as Spark does, without Spark. Brokers are real, and clients live as long as those of a query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra sandq[spark] is not installed: make spark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from sandq.client.kv import scan
from sandq.errors import HistoryGone, UnknownTopic
from sandq.model import offsets
from sandq.spark.datasource import BatchReader, StreamReader
from sandq.spark.source import columns, latest
from sandq.spark.source.brokers import ClientBrokers
from sandq.spark.source.options import parse_options
from sandq.spark.source.planning import Task
from sandq.spark.source.reading import page_fetcher
from sandq.testing import Broker, broker

BYTES = 400_000
"""A large value, so that a page has about ten of them."""


@pytest.fixture
def node() -> Iterator[Broker]:
    with broker() as running:
        running.create_topic("t")
        yield running


def fill(node: Broker, numbers: range, size: int = 0) -> None:
    """Produce a message for each number, and wait until all are closed."""
    with node.client() as client, client.producer("t") as producer:
        for number in numbers:
            producer.send(b"%d" % number + b" " * size)
    node.advance("1m")


def recreate_topic(node: Broker, numbers: range, *, kind: str = "timer", size: int = 0) -> None:
    """Delete topic "t" and create it again, with different messages."""
    with node.client() as client:
        client.admin.delete_topic("t")
        client.admin.create_topic("t", kind=kind)
    fill(node, numbers, size)


def options(node: Broker, **more: str) -> Any:
    return parse_options({"sandq.bootstrap.servers": node.address, "subscribe": "t", **more})


def values(batches: Iterable[Any]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["log", "all"])
def test_between_the_plan_of_a_batch_and_its_tasks(node: Broker, view: str) -> None:
    fill(node, range(10))
    reader = BatchReader(options(node, view=view))
    (planned,) = reader.partitions()
    assert values(reader.read(planned)) == [*range(10)]
    recreate_topic(node, range(100, 120))
    with pytest.raises(UnknownTopic, match="a new topic has its name"):
        list(reader.read(planned))
    (planned,) = reader.partitions()
    assert values(reader.read(planned)) == [*range(100, 120)], "a new batch must read the new topic"


def test_between_two_pages_of_a_task(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_BYTES", 1)
    fill(node, range(50), BYTES)
    reader = BatchReader(options(node))
    (planned,) = reader.partitions()
    batches = reader.read(planned)
    got = values([next(batches)])
    recreate_topic(node, range(100, 150), size=BYTES)
    # The reader may already have the next page, or may have requested it while the topic did not exist.
    with pytest.raises(UnknownTopic, match=r"a new topic has its name|there is no topic 't'"):
        for batch in batches:
            got += values([batch])
    assert got == [*range(len(got))] and len(got) < 50


def test_a_client_that_knows_the_topic_that_was(node: Broker) -> None:
    """The node's response decides, not the client's cached record of the topic."""
    fill(node, range(10))
    brokers = ClientBrokers((node.address,))
    try:
        wanted = options(node).topics
        ((tp, found),) = brokers.partitions(wanted).items()
        closed = offsets.pack(node.now_ms(), 0, 0, 0)
        fetch_page = page_fetcher(brokers.client, Task("t", tp.number, 0, offsets.FIRST, closed))
        assert brokers.measure(tp, "t", offsets.FIRST, None).messages == 10
        assert sum(len(piece.batch) for piece in fetch_page(offsets.FIRST).pieces)
        recreate_topic(node, range(100, 105))
        with pytest.raises(UnknownTopic, match="a new topic has its name"):
            brokers.measure(tp, "t", offsets.FIRST, None)
        with pytest.raises(UnknownTopic, match="a new topic has its name"):
            fetch_page(offsets.FIRST)
        ((anew, found),) = brokers.partitions(wanted).items()
        assert anew.number > tp.number and found.topic == "t"
        reply = brokers.measure(anew, "t", offsets.FIRST, None)
        assert (reply.number, reply.messages) == (anew.number, 5)
    finally:
        brokers.close()


# -- streams -----------------------------------------------------------------------------------------------------------


class Query:
    """The reader of a stream, used as by Spark's driver, and the position in its checkpoint."""

    def __init__(self, node: Broker, **more: str) -> None:
        self._reader = StreamReader(options(node, **more))
        self.start = self._reader.initialOffset()
        self.end = self.start

    def plan(self) -> list[Any]:
        """Plan the next micro-batch: return its end and its tasks."""
        self.end = self._reader.latestOffset(self.start, ReadAllAvailable())
        return self.tasks()

    def tasks(self) -> list[Any]:
        """Return the tasks of the planned micro-batch, also if it runs again."""
        return self._reader.partitions(self.start, self.end)

    def read(self, tasks: list[Any]) -> list[int]:
        return [value for task in tasks for value in values(self._reader.read(task))]

    def commit(self) -> None:
        self._reader.commit(self.end)
        self.start = self.end

    def stop(self) -> None:
        self._reader.stop()


@pytest.fixture
def queries(node: Broker) -> Iterator[list[Query]]:
    made: list[Query] = []
    yield made
    for query in made:
        query.stop()


def test_between_the_plan_of_a_micro_batch_and_its_tasks(node: Broker, queries: list[Query]) -> None:
    fill(node, range(10))
    queries.append(query := Query(node))
    tasks = query.plan()
    recreate_topic(node, range(100, 120))
    with pytest.raises(UnknownTopic, match="a new topic has its name"):
        query.read(tasks)
    with pytest.raises(HistoryGone, match=r"partition 0 of topic .t. \(number \d+\) does not exist"):
        query.tasks()


def test_between_two_micro_batches(node: Broker, queries: list[Query]) -> None:
    fill(node, range(10))
    queries.append(query := Query(node))
    assert query.read(query.plan()) == [*range(10)]
    query.commit()
    recreate_topic(node, range(100, 120))
    with pytest.raises(HistoryGone, match=r"partition 0 of topic .t. \(number \d+\): it was deleted.*failOnDataLoss"):
        query.plan()
    queries.append(again := Query(node))
    again.start = query.start
    with pytest.raises(HistoryGone, match="it was deleted"):
        again.plan()


@pytest.mark.parametrize("committed", [True, False])
def test_a_stream_that_goes_on(
    node: Broker, queries: list[Query], committed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false, the new topic is read completely and once, even if messages of the old topic were not
    read."""
    fill(node, range(10))
    queries.append(query := Query(node, failOnDataLoss="false"))
    tasks = query.plan()
    if committed:
        query.read(tasks)
        query.commit()
    recreate_topic(node, range(100, 120))
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        if not committed:
            assert query.read(query.tasks()) == [], "a repeated micro-batch must not contain rows of the new topic"
            query.commit()
        assert query.read(query.plan()) == [*range(100, 120)]
    assert "the rest is read" in caplog.text
    query.commit()
    fill(node, range(120, 125))
    assert query.read(query.plan()) == [*range(120, 125)]


# -- the latest values of keys -----------------------------------------------------------------------------------------


def put(node: Broker, keys: range) -> None:
    with node.client() as client:
        client.kv("t").put_many({f"k{key:05}": str(key) for key in keys})


@pytest.mark.parametrize("kind", ["compacted", "timer"])
def test_between_the_plan_and_the_latest_values(node: Broker, kind: str) -> None:
    recreate_topic(node, range(0), kind="compacted")
    put(node, range(20))
    reader = BatchReader(options(node, view="latest"))
    (planned,) = reader.partitions()
    assert values(reader.read(planned)) == [*range(20)]
    recreate_topic(node, range(0), kind=kind)
    with pytest.raises(UnknownTopic, match="a new topic has its name"):
        list(reader.read(planned))


def test_between_two_pages_of_the_latest_values(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PAGE_ROWS", 20)
    monkeypatch.setattr(latest, "BATCH_ROWS", 20)
    recreate_topic(node, range(0), kind="compacted")
    put(node, range(2000))
    reader = BatchReader(options(node, view="latest"))
    (planned,) = reader.partitions()
    batches = reader.read(planned)
    got = values([next(batches)])
    recreate_topic(node, range(0), kind="compacted")
    put(node, range(100, 3000))
    with pytest.raises(UnknownTopic, match="a new topic has its name"):
        for batch in batches:
            got += values([batch])
            assert max(got) < 2000, f"rows of both topics: {got}"
    assert got == [*range(len(got))] and len(got) < 200, got


def test_same_query_fails_again_on_recreated_topic(node: Broker, queries: list[Query]) -> None:
    """`Stream._check_lost` must not remember its report before it raises: otherwise, the next call would continue
    silently."""
    fill(node, range(10))
    queries.append(query := Query(node))
    query.read(query.plan())
    query.commit()
    recreate_topic(node, range(100, 120))
    for _ in range(2):
        with pytest.raises(HistoryGone, match="it was deleted"):
            query.plan()
