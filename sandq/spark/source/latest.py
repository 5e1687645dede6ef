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
from sandq.spark.credentials import NOBODY, Credentials
from sandq.spark.source.brokers import CLIENT_NAME, Brokers, check_kinds
from sandq.spark.source.columns import BATCH_BYTES, BATCH_ROWS, TIMES, headers_array, schema
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import PLAIN, Extra, SourceOptions
from sandq.sync import Client, connect


@dataclass(frozen=True, slots=True)
class LatestTask:
    """A partition whose keys one task reads."""

    topic: str
    number: int
    partition: int


def plan_latest(options: SourceOptions, brokers: Brokers, narrowed: Narrowed = WHOLE) -> list[LatestTask]:
    """A task for each partition. InvalidRequest when a topic is not compacted."""
    places = brokers.places(options.topics)
    check_kinds(places, options)
    return [
        LatestTask(found.topic, place.number, place.partition)
        for place, found in sorted(places.items())
        if narrowed.has(found.topic, place.partition)
    ]


def read_latest(
    task: LatestTask, servers: tuple[str, ...], extra: Extra = PLAIN, who: Credentials = NOBODY
) -> Iterator[Any]:
    """What the keys have (pyarrow.RecordBatch, with `columns.schema`), in their order, through a client of its own.
    UnknownTopic: the topic was deleted, before or while it is read."""
    with connect(*servers, name=CLIENT_NAME, **who.arguments()) as client:
        _check_number(client, task)
        entries = iter(client.kv(task.topic).scan(partition=task.partition))
        while rows := list(islice(entries, BATCH_ROWS)):
            _check_number(client, task)
            for part in _in_size(rows):
                yield record_batch(part, task, extra)
        _check_number(client, task)


def _check_number(client: Client, task: LatestTask) -> None:
    """UnknownTopic when there is another topic of this name by now. Numbers never come back: if there is not, all rows
    so far are of the right one. A page of keys does not say its topic's, MEASURE does, at no cost for an empty range.
    """
    nothing = offset_model.to_text(offset_model.FIRST)
    if client.measure(task.topic, task.partition, nothing, nothing).number != task.number:
        raise UnknownTopic(f"topic {task.topic!r} was deleted; there is another one of this name", topic=task.topic)


def record_batch(entries: list[Entry], task: LatestTask, extra: Extra = PLAIN) -> Any:
    """Entries as rows."""
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
    """Milliseconds from the write on."""
    ends = [entry.expires_ms for entry in entries]
    return pa.array([None if end is None else end - at for end, at in zip(ends, written, strict=True)], pa.int64())


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
