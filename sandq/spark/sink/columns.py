"""The columns of the sink: checks a DataFrame's columns, and converts its record batches into the form that is written.

    value        binary, string            required; null deletes the key, in a compacted topic only
    key          binary, string            messages of one key go to one partition
    headers      map<string, string or binary>, or array<struct<key, value>> as in the source
    raw_headers  binary                    the same as msgpack, in place of `headers`
    topic        string                    required, unless the option `topic` is given
    partition    int                       null: chosen by the key, else by rotation
    deliver_at   timestamp, or bigint (epoch ms); rounded up to milliseconds, so that no message is early
    delay_ms     bigint                    counted from the time at which the broker stores it; not with deliver_at
    ttl_ms       bigint                    a message that no consumer holds is dead this long after its delivery time
    unique_key   binary, string            1..1024 bytes
    priority     bigint, int               lower first; only in priority and fair topics
    tenant       string                    chooses the partition; only in fair topics; null: the default one

Other columns of the source (offset, timestamp, state, attempts, message_id) are ignored, so that rows of the source can
be written. Any other column is an error. Checks run on whole columns, and an error names the first wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sandq.client.producer import MESSAGE_OVERHEAD_BYTES, MessageValidation
from sandq.model.errors import InvalidRequest, InvalidSetting, SandqError
from sandq.model.headers import headers_pack, headers_unpack
from sandq.model.limits import FIXED
from sandq.model.names import check_tenant
from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS

BYTES: Final = ("value", "key", "headers", "unique_key")
TIMES: Final = ("deliver_at", "delay_ms", "ttl_ms")
SIZE: Final = "size"
"""Column with the bytes of each row, which limit the size of chunks."""
OF_SOURCE: Final = frozenset({"offset", "timestamp", "state", "attempts", "message_id"})
DELAY_MAX_MS: Final = 2**47
"""Maximum delay, so that the delivery time fits into an offset for the next 4,000 years."""
HEADERS_KEPT_BYTES: Final = 8 << 20
"""Maximum bytes of the cache of packed headers."""

HEADERS_OVERHEAD: Final = 500
"""Approximate bytes of a cache entry in addition to the packed headers."""

_TEXT: Final = ("binary", "string")
_LONG: Final = ("bigint", "int", "smallint", "tinyint")
_PAIRS: Final = tuple(f"array<struct<key:string,value:{kind}>>" for kind in _TEXT)
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": (*_PAIRS, *(f"map<string,{kind}>" for kind in _TEXT)),
    "raw_headers": ("binary",),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "deliver_at": ("timestamp", "bigint"),
    "delay_ms": _LONG,
    "ttl_ms": _LONG,
    "unique_key": _TEXT,
    "priority": _LONG,
    "tenant": ("string",),
}


def check_columns(fields: Iterable[tuple[str, str]], topic: str | None) -> tuple[str, ...]:
    """Return the names of the columns to write.

    `fields` has (name, type as in Spark's simpleString) of all columns. Raises InvalidSetting with all mistakes.
    """
    found: list[str] = []
    mistakes: list[str] = []
    for name, kind in fields:
        types = _TYPES.get(name)
        if name in OF_SOURCE:
            continue
        if types is None:
            mistakes.append(f"{name}: no such column; there are {', '.join(_TYPES)}: leave it out with drop or select")
        elif kind not in types and not (_is_text(kind) and "string" in types):
            mistakes.append(f"{name}: the type {' or '.join(types)} is expected, not {kind}; cast it")
        elif name in found:
            mistakes.append(f"{name}: there are two columns of this name")
        found.append(name)
    if "value" not in found:
        mistakes.append("value: the column is missing")
    if topic is None and "topic" not in found:
        mistakes.append("topic: neither the option nor the column is given")
    if {"headers", "raw_headers"} <= set(found):
        mistakes.append("raw_headers: there is also a column headers; drop one of them")
    if mistakes:
        raise InvalidSetting("sandq sink: " + "; ".join(mistakes))
    return tuple(name for name in found if name != "topic" or topic is None)


def _is_text(kind: str) -> bool:
    """Return whether a type is varchar(n) or char(n): strings whose length Spark limits."""
    return kind.startswith(("varchar(", "char("))


Number = Callable[[int], int]
"""Returns the number of a row in the Spark partition, given its index in a record batch."""


class RowErrors:
    """Creates errors that name a row of a Spark partition by its number."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def at(self, row: int, column: str, problem: str) -> InvalidRequest:
        """Return the error for a row."""
        return InvalidRequest(
            f"sandq sink: row {row} of Spark partition {self._partition} (both from 0), column {column}: {problem}",
            row=row,
            column=column,
        )

    def check(self, bad: Any, number: Number, column: str, problem: str | Callable[[int], str]) -> None:
        """Raise an error for the first True of a boolean array; nulls are ignored.

        `problem`: the text, or a function that returns it for the index of the row.
        """
        index = pc.index(bad, True).as_py()
        if index >= 0:
            raise self.at(number(index), column, problem if isinstance(problem, str) else problem(index))


class Columns:
    """Converts record batches into the form that is written: binary columns, times in milliseconds, sizes."""

    def __init__(self, names: Sequence[str], checks: MessageValidation, errors: RowErrors) -> None:
        self._names = names
        self._errors = errors
        self._limits = {
            "value": ("message_bytes", checks.message_bytes),
            "key": ("key_bytes", checks.key_bytes),
            "headers": ("headers_bytes", checks.headers_bytes),
            "unique_key": ("unique_key_bytes", FIXED.unique_key_bytes),
        }
        self._headers: dict[Any, bytes | None] = {}
        self._headers_bytes = 0

    def read(self, batch: Any, first: int) -> Any:
        """Convert a pyarrow.RecordBatch; `first` is the number of its first row.

        Raises InvalidRequest for the first wrong row of a column.
        """
        number = first.__add__
        found: dict[str, Any] = {}
        for name in self._names:
            column = batch.column(name)
            if name == "headers":
                column = self._packed(column, number)
            elif name in TIMES:
                column = self._time(name, column, number)
            elif name == "partition":
                column = column.cast(pa.int32())
                self._errors.check(pc.less(column, 0), number, name, "it must not be negative")
            elif name == "priority":
                column = self._priority(column, number)
            elif name == "tenant":
                column = self._tenant(column, number)
            elif name == "topic":
                column = column.cast(pa.string())
                self._errors.check(pc.is_null(column), number, name, "it is null")
            else:
                column = column.cast(pa.binary())
            if name == "raw_headers":
                self._check_raw(column, number)
            found["headers" if name == "raw_headers" else name] = column
        self._check_pairs(found, number)
        found[SIZE] = self._sizes(found, number, batch.num_rows)
        return pa.RecordBatch.from_arrays([*found.values()], names=[*found])

    def _sizes(self, columns: dict[str, Any], number: Number, rows: int) -> Any:
        sizes = pa.repeat(pa.scalar(MESSAGE_OVERHEAD_BYTES, pa.int64()), rows)
        for name in BYTES:
            if name not in columns:
                continue
            lengths = pc.binary_length(columns[name])
            limit, most = self._limits[name]
            self._errors.check(
                pc.greater(lengths, most),
                number,
                name,
                lambda row, lengths=lengths, most=most, limit=limit: (  # type: ignore[misc]
                    f"{lengths[row]} bytes; {most} is the limit ({limit})"
                ),
            )
            if name == "unique_key":
                self._errors.check(pc.equal(lengths, 0), number, name, "it is empty")
            sizes = pc.add(sizes, pc.fill_null(lengths, 0))
        if "tenant" in columns:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(columns["tenant"]), 0))
        return sizes

    def _priority(self, column: Any, number: Number) -> Any:
        """Convert priorities to int64, the type in a batch, and check their range."""
        column = column.cast(pa.int64())
        least, most = FIXED.priority_least, FIXED.priority_most
        bad = pc.or_(pc.less(column, least), pc.greater(column, most))
        self._errors.check(bad, number, "priority", lambda row: f"{column[row]} is not within {least}..{most}")
        return column

    def _tenant(self, column: Any, number: Number) -> Any:
        """Convert tenants to binary, and check each different name once."""
        for name in column.unique().to_pylist():
            try:
                if name is not None:
                    check_tenant(name)
            except InvalidRequest as error:
                row = number(pc.index(column, pa.scalar(name, column.type)).as_py())
                raise self._errors.at(row, "tenant", error.message.removeprefix("tenant: ")) from None
        return column.cast(pa.binary())

    def _time(self, name: str, column: Any, number: Number) -> Any:
        """Convert times and durations to milliseconds as int64, and check their range."""
        check = self._errors.check
        is_number = not pa.types.is_timestamp(column.type)
        if not is_number:
            micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
            # Round up, so that no message is delivered early.
            column = pc.divide(pc.add(micros, 999), 1000)
        else:
            column = column.cast(pa.int64())
        if name == "deliver_at":
            meant = "looks like seconds; epoch milliseconds are expected" if is_number else "is before March 1973"
            check(pc.less(column, LEAST_INSTANT_MS), number, name, lambda row: f"{column[row]} ms {meant}")
            check(
                pc.greater(column, TIME_MAX_MS), number, name, f"it is after the last possible time, {TIME_MAX_MS} ms"
            )
        else:
            least = 1 if name == "ttl_ms" else 0
            bad = pc.or_(pc.less(column, least), pc.greater(column, DELAY_MAX_MS))
            check(bad, number, name, lambda row: f"{column[row]} is not within {least}..{DELAY_MAX_MS}")
        return column

    def _check_pairs(self, columns: dict[str, Any], number: Number) -> None:
        """Check that no row has both a time and a delay."""
        if "deliver_at" in columns and "delay_ms" in columns:
            both = pc.and_(columns["deliver_at"].is_valid(), columns["delay_ms"].is_valid())
            self._errors.check(both, number, "delay_ms", "deliver_at is set as well; set only one of them")

    def _packed(self, column: Any, number: Number) -> Any:
        """Encode headers as msgpack. This is the only column that needs Python code for each row."""
        is_map = pa.types.is_map(column.type)
        cells: list[bytes | None] = []
        kept = self._headers
        for index, row in enumerate(column.to_pylist()):
            pairs = () if not row else tuple(row) if is_map else tuple([_pair(item) for item in row])
            if pairs not in kept:
                if self._headers_bytes > HEADERS_KEPT_BYTES:
                    kept.clear()
                    self._headers_bytes = 0
                kept[pairs] = cell = self._pack(pairs, number(index))
                self._headers_bytes += len(cell or b"") + HEADERS_OVERHEAD
            cells.append(kept[pairs])
        return pa.array(cells, pa.binary())

    def _check_raw(self, column: Any, number: Number) -> None:
        """Check that the bytes are valid headers: consumers could not read the message otherwise."""
        for cell in column.unique().to_pylist():
            try:
                headers_unpack(cell)
            except SandqError as error:
                row = number(pc.index(column, pa.scalar(cell, pa.binary())).as_py())
                raise self._errors.at(row, "raw_headers", error.message.removeprefix("headers: ")) from None

    def _pack(self, pairs: tuple[tuple[str, Any], ...], row: int) -> bytes | None:
        headers = dict(pairs)
        if len(headers) < len(pairs):
            raise self._errors.at(row, "headers", "a name occurs twice")
        try:
            return headers_pack(headers, max_bytes=self._limits["headers"][1])
        except SandqError as error:
            raise self._errors.at(row, "headers", error.message.removeprefix("headers: ")) from None


def _pair(item: dict[str, Any] | None) -> tuple[Any, Any]:
    """Return (name, value). For a null the name is None, which is refused later because it is no text."""
    return (item["key"], item["value"]) if item is not None else (None, None)
