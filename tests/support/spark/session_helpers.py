"""What tests through Spark share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException

from sandq.spark.jobs.archive import LATE
from sandq.testing import Broker


def fill(node: Broker, topic: str, numbers: range, **options: Any) -> None:
    """A message for each number, with keys and headers."""
    with node.client() as client, client.producer(topic) as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=b"k%d" % (number % 7), headers={"n": number, "t": "x"}, **options)


def reading(reader: Any, node: Broker, **options: Any) -> Any:
    """`spark.read` or `spark.readStream`, of a broker."""
    return reader.format("sandq").options(**{"sandq.bootstrap.servers": node.address, **options})


def values(frame: Any) -> list[int]:
    """The numbers in the column `value`, sorted."""
    return sorted(int(row.value) for row in frame.select("value").collect())


@contextmanager
def suppress_late() -> Iterator[None]:
    """Suppress that Spark did not wait for a source to begin, which takes longer than its 10 s on a busy machine."""
    try:
        yield
    except StreamingQueryException as error:
        if LATE not in str(error):
            raise
