"""The present values of a compacted topic's keys, a task for each partition.

A partition is scanned page by page, each as it stood when it was read: a key that is written meanwhile comes with the
value before or the one after, and one that had a value all the time comes once. `offset` and `message_id` are the
version, `timestamp` and `deliver_at` the time of the write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from sandq.client import Entry
from sandq.model import offsets as offset_model
from sandq.model.errors import UnknownTopic
from sandq.spark.columns import BATCH_BYTES, BATCH_ROWS, TIMES, headers_array, schema
from sandq.spark.options import SourceOptions
from sandq.spark.source import CLIENT_NAME, Brokers, check_kinds
from sandq.sync import connect


@dataclass(frozen=True, slots=True)
class LatestTask:
    """A partition whose keys one task reads."""

    topic: str
    number: int
    partition: int


def plan_latest(options: SourceOptions, brokers: Brokers) -> list[LatestTask]:
    """A task for each partition. InvalidRequest when a topic is not compacted."""
    places = brokers.places(options.topics)
    check_kinds(places, options)
    return [LatestTask(found.topic, place.number, place.partition) for place, found in sorted(places.items())]


def read_latest(task: LatestTask, servers: tuple[str, ...], *, include_headers: bool = False) -> Iterator[Any]:
    """What the keys have (pyarrow.RecordBatch, with `columns.schema`), in their order, through a client of its own."""
    with connect(*servers, name=CLIENT_NAME) as client:
        if client.admin.topic(task.topic).number != task.number:
            raise UnknownTopic(f"topic {task.topic!r} was deleted; there is another one of this name", topic=task.topic)
        entries = iter(client.kv(task.topic).scan(partition=task.partition))
        while rows := list(islice(entries, BATCH_ROWS)):
            for part in _in_size(rows):
                yield record_batch(part, task, include_headers=include_headers)


def record_batch(entries: list[Entry], task: LatestTask, *, include_headers: bool = False) -> Any:
    """Entries as rows."""
    versions = pa.array([entry.version for entry in entries], pa.string())
    written = [offset_model.deliver_ms(entry.version_bytes) for entry in entries]
    times = pa.array(written, pa.timestamp("ms", tz="UTC")).cast(TIMES)
    columns = [
        pa.array([entry.key for entry in entries], pa.binary()),
        pa.array([entry.value for entry in entries], pa.binary()),
        pa.repeat(task.topic, len(entries)),
        pa.repeat(pa.scalar(task.partition, pa.int32()), len(entries)),
        versions,
        times,
        *([headers_array([entry.headers_bytes for entry in entries])] if include_headers else []),
        times,
        versions,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema(include_headers=include_headers))


def _in_size(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Parts of no more than BATCH_BYTES, unless one entry has more."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        more = len(entry.key) + len(entry.value)
        if part and size + more > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    yield part
