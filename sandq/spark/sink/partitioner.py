"""Which partition a row goes to: the same one in every attempt, whoever leads what.

    the column `partition`, else by the key, else by the unique_key (as all clients of sandq do), else in turn: the rows
    of one block with neither go to one partition, those of the next block to the next

Keys, and rows in turn, are spread over the partitions that the topic *began* with. Their number never changes, that of
all partitions may be raised between two attempts: rows would be in another place then, and some twice. What remains:
once a topic was given more partitions, a key may be written to another one than other producers choose for it now, and
the new ones get only rows that name them. The column `partition` chooses otherwise.

In a fair topic the tenant of a row alone chooses, over the partitions that the topic began with.
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
"""Keys and tenants whose partition is remembered."""
_partition_for = lru_cache(maxsize=KEYS_KEPT)(partition_for)


class Target(NamedTuple):
    """Where rows go together. `relative`: after delays, which no batch has together with instants."""

    topic: str
    partition: int
    relative: bool


class Router:
    """Splits blocks of rows by where they go."""

    def __init__(
        self, topic: str | None, topics: Callable[[str], TopicRecord], spark_partition: int, errors: RowErrors
    ) -> None:
        """`topic`: of all rows; None: the column says. `topics` asks for one; it raises UnknownTopic."""
        self._topic = topic
        self._ask = topics
        self._turn = spark_partition
        self._errors = errors
        self._records: dict[str, TopicRecord] = {}

    def split(self, block: Any, first: int) -> Iterator[tuple[Target, Any]]:
        """The rows of a block (pyarrow.RecordBatch; its first row has this number) by target, in their order. To be
        called with every block in turn. InvalidRequest about rows that their topic does not take."""
        turn, self._turn = self._turn, self._turn + 1
        for topic, rows, number in self._by_topic(block, first):
            record = self._record(topic)
            partitions = self._partitions(record, rows, number, turn)
            self._check(record, rows, number)
            for (partition, relative), part in _by_code(rows, partitions):
                yield Target(topic, partition, relative), part

    def _record(self, topic: str) -> TopicRecord:
        record = self._records.get(topic)
        if record is None:
            record = self._records[topic] = self._ask(topic)
            now, initial = len(record.partitions), record.initial_partitions
            if now > initial:
                log.warning(
                    "topic %s has %d partitions and began with %d: rows that name no partition go to those",
                    topic,
                    now,
                    initial,
                )
        return record

    def _by_topic(self, block: Any, first: int) -> Iterator[tuple[str, Any, Number]]:
        if self._topic is not None:
            yield self._topic, block, first.__add__
            return
        column = block.column("topic")
        for topic in column.unique().to_pylist():
            places = pc.indices_nonzero(pc.equal(column, topic))
            yield topic, block.take(places), lambda place, places=places: first + places[place].as_py()  # type: ignore[misc]

    def _partitions(self, record: TopicRecord, rows: Any, number: Number, turn: int) -> Any:
        """The partition of every row (int32)."""
        initial = record.initial_partitions
        in_turn = pa.scalar(turn % initial, pa.int32())
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
            return pc.coalesce(*chosen.values(), in_turn) if chosen else pa.repeat(in_turn, rows.num_rows)
        asked = rows.column("partition")
        last = len(record.partitions) - 1
        self._errors.check(
            pc.greater(asked, last),
            number,
            "partition",
            lambda place: (
                f"topic {record.name!r} has partitions 0..{last}, there is no {asked[place]}; without the "
                "column it is chosen by the key"
            ),
        )
        bound = {COMPACTED: "key", FAIR: "tenant"}.get(record.kind, "unique_key")
        if bound in chosen:
            wanted = pc.coalesce(*chosen.values())
            is_other = pc.not_equal(asked, wanted)
            if bound == "unique_key":  # a key alone binds no row to a partition
                is_other = pc.and_(is_other, rows.column(bound).is_valid())

            def problem(place: int) -> str:
                by = next(name for name, partitions in chosen.items() if partitions[place].is_valid)
                return f"the row's {by} belongs to {wanted[place]}, not {asked[place]}"

            self._errors.check(is_other, number, "partition", problem)
        return pc.coalesce(asked, *chosen.values(), in_turn)

    def _check(self, record: TopicRecord, rows: Any, number: Number) -> None:
        """Whether a topic of this kind takes the rows: the broker would refuse all that are sent with them."""
        check, names = self._errors.check, rows.schema.names
        for name, kinds in ACCEPTING_KINDS.items():
            if name in names and record.kind not in kinds:
                why = f"{record.name!r} is a {record.kind} topic; one of the kind {' or '.join(kinds)} takes it"
                check(rows.column(name).is_valid(), number, name, why)
        if record.kind != COMPACTED:
            why = f"it is null: {record.name!r} is a topic without keys to delete"
            check(rows.column("value").is_null(), number, "value", why)
            return
        why = f"topic {record.name!r} is compacted, each of its messages is a write to a key"
        key = rows.column("key") if "key" in names else pa.nulls(rows.num_rows, pa.binary())
        check(pc.equal(pc.fill_null(pc.binary_length(key), 0), 0), number, "key", why)
        for name in ("deliver_at", "delay_ms", "unique_key"):
            if name in names:
                why = f"topic {record.name!r} is compacted, it has no such thing; leave the column out"
                check(rows.column(name).is_valid(), number, name, why)


def _by_key(keys: Any, partitions: int, delimiter: bytes = b"") -> Any:
    """The partition of every key (int32), by its partition key; null where there is none."""
    encoded = keys.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    found = [_partition_for(key.partition(delimiter)[0] if delimiter else key, partitions) for key in known]
    return pa.array(found, pa.int32()).take(encoded.indices)


def _by_code(rows: Any, partitions: Any) -> Iterator[tuple[tuple[int, bool], Any]]:
    """((partition, whether they are after delays), rows), each once; the rows of each stay in their order."""
    codes = pc.multiply(partitions, 2)
    if "delay_ms" in rows.schema.names:
        codes = pc.add(codes, rows.column("delay_ms").is_valid().cast(pa.int32()))
    extent = pc.min_max(codes).as_py()
    if extent["min"] == extent["max"]:
        runs, sorted_rows = [(extent["min"], rows.num_rows)], rows
    else:
        order = pc.array_sort_indices(codes)  # which keeps the order of equal ones
        ends = pc.run_end_encode(codes.take(order))
        runs = list(zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True))
        sorted_rows = rows.take(order)
    start = 0
    for code, stop in runs:
        yield (code >> 1, bool(code & 1)), sorted_rows.slice(start, stop - start)
        start = stop
