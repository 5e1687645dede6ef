"""Chooses the partition of each row: the same partition in every attempt of a task.

The first of these rules that applies to a row decides:

1. the column `partition`
2. the key, as in all clients of sandq
3. the unique_key
4. rotation: the rows of one block without any of these go to one partition, those of the next block to the next one

In a fair topic, only the tenant decides.

Rules 2 to 4 and tenants use only the partitions with which the topic was created, because their number never changes.
The number of all partitions may be raised between two attempts. Rows would then go to different partitions, and some
would be stored twice. The disadvantage: in a topic that got more partitions, other producers may choose a different
partition for the same key, and the new partitions get only rows that name them in the column `partition`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sandq.model.names import ACCEPTING_KINDS, COMPACTED, DEFAULT_TENANT, FAIR
from sandq.model.partitioning import delimiter_of, partition_for
from sandq.protocol.replies import TopicRecord
from sandq.spark.sink.columns import Number, RowErrors

log = logging.getLogger("sandq.spark")

KEYS_KEPT: Final = 65_536
"""Maximum number of keys and tenants whose partition is cached."""
_partition_for = lru_cache(maxsize=KEYS_KEPT)(partition_for)


class Target(NamedTuple):
    """Destination of rows that are sent together.

    `relative`: the rows have delays. A batch has either delays or times.
    """

    topic: str
    partition: int
    relative: bool


class Router:
    """Splits blocks of rows by their target."""

    def __init__(
        self, topic: str | None, topics: Callable[[str], TopicRecord], spark_partition: int, errors: RowErrors
    ) -> None:
        """`topic`: the topic of all rows; None if the column `topic` names it. `topics` returns the record of a topic,
        or raises UnknownTopic."""
        self._topic = topic
        self._read_topic = topics
        self._rotation = spark_partition
        self._errors = errors
        self._records: dict[str, TopicRecord] = {}

    def split(self, block: Any, first: int) -> Iterator[tuple[Target, Any]]:
        """Return the rows of a block by target; the rows of each target keep their order.

        `block` is a pyarrow.RecordBatch, `first` the number of its first row. Call it with all blocks in their order.
        Raises InvalidRequest for rows that their topic does not accept.
        """
        rotation, self._rotation = self._rotation, self._rotation + 1
        for topic, rows, number in self._by_topic(block, first):
            record = self._record(topic)
            partitions = self._partitions(record, rows, number, rotation)
            self._check(record, rows, number)
            for (partition, relative), part in _by_code(rows, partitions):
                yield Target(topic, partition, relative), part

    def _record(self, topic: str) -> TopicRecord:
        record = self._records.get(topic)
        if record is None:
            record = self._records[topic] = self._read_topic(topic)
            now, initial = len(record.partitions), record.initial_partitions
            if now > initial:
                log.warning(
                    "topic %s has %d partitions and was created with %d: rows that name no partition go to those %d",
                    topic,
                    now,
                    initial,
                    initial,
                )
        return record

    def _by_topic(self, block: Any, first: int) -> Iterator[tuple[str, Any, Number]]:
        if self._topic is not None:
            yield self._topic, block, first.__add__
            return
        column = block.column("topic")
        for topic in column.unique().to_pylist():
            chosen = pc.indices_nonzero(pc.equal(column, topic))
            yield topic, block.take(chosen), lambda row, chosen=chosen: first + chosen[row].as_py()  # type: ignore[misc]

    def _partitions(self, record: TopicRecord, rows: Any, number: Number, rotation: int) -> Any:
        """Return the partition of every row (int32): that of its column `partition`, or that of its tenant or key, or
        the rotating one.

        Report rows whose column `partition` names no partition, or not the one to which their tenant or key belongs.
        """
        initial = record.initial_partitions
        rotated = pa.scalar(rotation % initial, pa.int32())
        names = rows.schema.names
        if record.kind == FAIR:
            default = pa.scalar(_partition_for(DEFAULT_TENANT.encode(), initial), pa.int32())
            has_tenants = "tenant" in names
            tenants = _by_key(rows.column("tenant"), initial) if has_tenants else pa.nulls(rows.num_rows, pa.int32())
            chosen = {"tenant": pc.fill_null(tenants, default)}
        else:
            delimiter = delimiter_of(record.settings)
            by = ("key", "unique_key")
            chosen = {name: _by_key(rows.column(name), initial, delimiter) for name in by if name in names}
        if "partition" not in names:
            return pc.coalesce(*chosen.values(), rotated) if chosen else pa.repeat(rotated, rows.num_rows)
        named = rows.column("partition")
        last = len(record.partitions) - 1
        self._errors.check(
            pc.greater(named, last),
            number,
            "partition",
            lambda row: (
                f"topic {record.name!r} has partitions 0..{last}, there is no {named[row]}; without the "
                "column, the key chooses the partition"
            ),
        )
        # The column whose partition the named partition must not contradict.
        bound = {COMPACTED: "key", FAIR: "tenant"}.get(record.kind, "unique_key")
        if bound in chosen:
            wanted = pc.coalesce(*chosen.values())
            is_wrong = pc.not_equal(named, wanted)
            if bound == "unique_key":  # a row with only a key may name any partition
                is_wrong = pc.and_(is_wrong, rows.column(bound).is_valid())

            def problem(row: int) -> str:
                by = next(name for name, partitions in chosen.items() if partitions[row].is_valid)
                return f"the row's {by} belongs to {wanted[row]}, not {named[row]}"

            self._errors.check(is_wrong, number, "partition", problem)
        return pc.coalesce(named, *chosen.values(), rotated)

    def _check(self, record: TopicRecord, rows: Any, number: Number) -> None:
        """Check that the topic's kind accepts the rows: the broker would refuse the whole chunk of a bad row."""
        check, names = self._errors.check, rows.schema.names
        for name, kinds in ACCEPTING_KINDS.items():
            if name in names and record.kind not in kinds:
                problem = f"{record.name!r} is a {record.kind} topic; only {' or '.join(kinds)} topics accept it"
                check(rows.column(name).is_valid(), number, name, problem)
        if record.kind != COMPACTED:
            problem = f"it is null: topic {record.name!r} is not compacted, so there is no key to delete"
            check(rows.column("value").is_null(), number, "value", problem)
            return
        problem = f"it is missing or empty: topic {record.name!r} is compacted, each of its messages writes a key"
        key = rows.column("key") if "key" in names else pa.nulls(rows.num_rows, pa.binary())
        check(pc.equal(pc.fill_null(pc.binary_length(key), 0), 0), number, "key", problem)
        for name in ("deliver_at", "delay_ms", "unique_key"):
            if name in names:
                problem = f"topic {record.name!r} is compacted and does not support it; leave the column out"
                check(rows.column(name).is_valid(), number, name, problem)


def _by_key(keys: Any, partitions: int, delimiter: bytes = b"") -> Any:
    """Return the partition of every key (int32); null where the key is null.

    If the topic has a delimiter, only the part of the key before it chooses the partition.
    """
    encoded = keys.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    found = [_partition_for(key.partition(delimiter)[0] if delimiter else key, partitions) for key in known]
    return pa.array(found, pa.int32()).take(encoded.indices)


def _by_code(rows: Any, partitions: Any) -> Iterator[tuple[tuple[int, bool], Any]]:
    """Return ((partition, whether the rows have delays), rows) for each combination; the rows keep their order."""
    codes = pc.multiply(partitions, 2)
    if "delay_ms" in rows.schema.names:
        codes = pc.add(codes, rows.column("delay_ms").is_valid().cast(pa.int32()))
    extent = pc.min_max(codes).as_py()
    if extent["min"] == extent["max"]:
        runs, sorted_rows = [(extent["min"], rows.num_rows)], rows
    else:
        order = pc.array_sort_indices(codes)  # a stable sort
        ends = pc.run_end_encode(codes.take(order))
        runs = list(zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True))
        sorted_rows = rows.take(order)
    start = 0
    for code, stop in runs:
        yield (code >> 1, bool(code & 1)), sorted_rows.slice(start, stop - start)
        start = stop
