"""The view `latest`: reads the current value of each key of compacted topics, with one task per partition.

A task scans its partition page by page. A key that is written during the scan has its old or its new value. A key that
has a value during the whole scan appears exactly once. `offset` and `message_id` are the key's version; `timestamp` and
`deliver_at` are the time of the write.
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
from sandq.spark.credentials import NO_CREDENTIALS, Credentials
from sandq.spark.source.brokers import CLIENT_NAME, Brokers, check_kinds
from sandq.spark.source.columns import BATCH_BYTES, BATCH_ROWS, TIMES, headers_array, schema
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import PLAIN, Extra, SourceOptions
from sandq.sync import Client, connect


@dataclass(frozen=True, slots=True)
class LatestTask:
    """A task that reads the keys of one partition."""

    topic: str
    number: int
    partition: int


def plan_latest(options: SourceOptions, brokers: Brokers, narrowed: Narrowed = WHOLE) -> list[LatestTask]:
    """Return a task for each partition. Raises InvalidRequest if a topic is not compacted."""
    partitions = brokers.partitions(options.topics)
    check_kinds(partitions, options)
    return [
        LatestTask(found.topic, tp.number, tp.partition)
        for tp, found in sorted(partitions.items())
        if narrowed.has(found.topic, tp.partition)
    ]


def read_latest(
    task: LatestTask, servers: tuple[str, ...], extra: Extra = PLAIN, credentials: Credentials = NO_CREDENTIALS
) -> Iterator[Any]:
    """Return the entries of a task in the order of keys, as pyarrow.RecordBatch with `columns.schema`.

    Connects a client for this task. Raises UnknownTopic if the topic was deleted before or during the scan.
    """
    with connect(*servers, name=CLIENT_NAME, **credentials.arguments()) as client:
        _check_number(client, task)
        entries = iter(client.kv(task.topic).scan(partition=task.partition))
        while rows := list(islice(entries, BATCH_ROWS)):
            _check_number(client, task)
            for part in _in_size(rows):
                yield record_batch(part, task, extra)
        _check_number(client, task)


def _check_number(client: Client, task: LatestTask) -> None:
    """Raise UnknownTopic if a new topic has the name by now.

    Topic numbers are never reused: if the number is still the same, all rows so far are from the planned topic. A page
    of keys does not contain the topic's number, so a MEASURE of an empty range, which is cheap, reads it.
    """
    nothing = offset_model.to_text(offset_model.FIRST)
    if client.measure(task.topic, task.partition, nothing, nothing).number != task.number:
        raise UnknownTopic(f"topic {task.topic!r} was deleted; a new topic has its name", topic=task.topic)


def record_batch(entries: list[Entry], task: LatestTask, extra: Extra = PLAIN) -> Any:
    """Return entries as a record batch."""
    raw = [entry.headers_bytes for entry in entries]
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
        *([headers_array(raw)] if extra.headers else []),
        times,
        versions,
        *([pa.array(raw, pa.binary()), _times_to_live(entries, written)] if extra.raw else []),
        *([pa.nulls(len(entries), pa.int32()), pa.nulls(len(entries), pa.string())] if extra.rank else []),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema(extra._replace(only=()))).select(schema(extra).names)


def _times_to_live(entries: list[Entry], written: list[int]) -> Any:
    """Return the times to live, in ms from the write."""
    ends = [entry.expires_ms for entry in entries]
    return pa.array([None if end is None else end - at for end, at in zip(ends, written, strict=True)], pa.int64())


def _in_size(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Split entries into parts of at most BATCH_BYTES; a larger entry is a part by itself."""
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
