"""Provide functions for tests that read and write through Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException

from sandq.spark.jobs.archive import SLOW_START
from sandq.testing import Broker


def fill(node: Broker, topic: str, numbers: range, **options: Any) -> None:
    """Produce a message for each number, with a key and headers."""
    with node.client() as client, client.producer(topic) as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=b"k%d" % (number % 7), headers={"n": number, "t": "x"}, **options)


def reading(reader: Any, node: Broker, **options: Any) -> Any:
    """Return `spark.read` or `spark.readStream` with the options for a broker."""
    return reader.format("sandq").options(**{"sandq.bootstrap.servers": node.address, **options})


def values(frame: Any) -> list[int]:
    """Return the numbers in the column `value`, sorted."""
    return sorted(int(row.value) for row in frame.select("value").collect())


@contextmanager
def suppress_late() -> Iterator[None]:
    """Suppress the error that the start of a source took longer than 10 s. On a busy machine, it may take longer."""
    try:
        yield
    except StreamingQueryException as error:
        if SLOW_START not in str(error):
            raise
