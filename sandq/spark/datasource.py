"""The data source `sandq` of Spark: implements the classes that `spark.read.format("sandq")` and its like call.

`schema` checks the options, because Spark calls it first and replaces an error of `streamReader` by a different one.
Spark starts a process for each call and imports this module in it. So the client is imported only where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

try:
    import pyarrow  # noqa: F401 - to report at once that it is missing
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        Filter,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )
except ImportError as error:
    raise ImportError(
        f"{error}. The source needs PySpark 4.2 or later and PyArrow: pip install 'sandq[spark]'"
    ) from error

from sandq.model.errors import InvalidSetting
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import LATEST_VALUES, SourceOptions, parse_options
from sandq.spark.source.planning import Task
from sandq.spark.source.positions import Positions

if TYPE_CHECKING:
    from sandq.spark.source.brokers import ClientBrokers
    from sandq.spark.source.streams import Stream


class SandqDataSource(DataSource):
    """The source and the sink (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        return "sandq"

    def schema(self) -> StructType:
        return struct_of(parse_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        options = self._checked(schema)
        options.check_batch()
        return FilteredBatchReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from sandq.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from sandq.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _checked(self, schema: StructType) -> SourceOptions:
        options = parse_options(self.options)
        columns = struct_of(options)
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in columns]:
            raise InvalidSetting(
                f"sandq source: schema: its columns are {columns.simpleString()}; leave .schema(...) out and select"
            )
        return options


def struct_of(options: SourceOptions) -> StructType:
    """Return the columns of the source as a Spark schema; the same columns as `columns.schema`."""
    times, pairs = TimestampType(), StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    headers = [StructField("headers", ArrayType(pairs))] if options.extra.headers else []
    raw = [StructField("raw_headers", BinaryType()), StructField("ttl_ms", LongType())] if options.extra.raw else []
    rank = [StructField("priority", IntegerType()), StructField("tenant", StringType())] if options.extra.rank else []
    found = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", StringType()),
            StructField("timestamp", times),
            *headers,
            StructField("deliver_at", times),
            StructField("message_id", StringType()),
            *raw,
            *rank,
        ]
    )
    return StructType([field for field in found if options.extra.has(field.name)])


def _read(options: SourceOptions, partition: InputPartition | None, narrowed: Narrowed) -> Iterator[Any]:
    # Spark passes None if there is nothing to read.
    task = None if partition is None else partition.value
    if task is None:
        return iter(())
    if isinstance(task, Task):
        from sandq.spark.source.reading import read_task

        found = read_task(
            task,
            options.servers,
            options.extra,
            fail_on_data_loss=options.fail_on_data_loss,
            credentials=options.credentials,
        )
    else:
        from sandq.spark.source.latest import read_latest

        found = read_latest(task, options.servers, options.extra, options.credentials)
    return map(narrowed.rows, found)


class BatchReader(DataSourceReader):
    """The reader of a batch: the driver plans its tasks, the workers read them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed = WHOLE

    def partitions(self) -> list[InputPartition]:
        from sandq.spark.source.batches import plan_batch
        from sandq.spark.source.brokers import ClientBrokers
        from sandq.spark.source.latest import plan_latest

        brokers = ClientBrokers(self._options.servers, self._options.credentials)
        try:
            plan = plan_latest if self._options.view == LATEST_VALUES else plan_batch
            return [InputPartition(task) for task in plan(self._options, brokers, self._narrowed)]
        finally:
            brokers.close()

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self._options, partition, self._narrowed)


class FilteredBatchReader(BatchReader):
    """A batch reader that gets the query's filters.

    Spark rejects a reader with `pushFilters` unless its setting spark.sql.python.filterPushdown.enabled is true. So
    this class is used only with the option `pushFilters`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from sandq.spark.source.filters import narrowed

        self._narrowed = narrowed(filters)
        return filters  # Spark applies all of them again


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream: lives on the driver as long as its query.

    The workers read with a copy of it, which has no client.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._brokers: ClientBrokers | None = None
        self._stream: Stream | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options, "_brokers": None, "_stream": None}

    def initialOffset(self) -> dict[str, Any]:
        return self._open().initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._open().latest(Positions.parse(start), most).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._open().report()

    def prepareForTriggerAvailableNow(self) -> None:
        self._open().set_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._open().tasks(Positions.parse(start), Positions.parse(end))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self._options, partition, WHOLE)

    def commit(self, end: dict[str, Any]) -> None:
        self._open().committed(Positions.parse(end))

    def stop(self) -> None:
        """Close the client. The hold stays, because the query may continue from its checkpoint."""
        if self._brokers is not None:
            self._brokers.close()
            self._brokers = self._stream = None

    def _open(self) -> Stream:
        if self._stream is None:
            from sandq.spark.source.brokers import ClientBrokers
            from sandq.spark.source.streams import Stream

            self._options.check_stream()
            self._brokers = ClientBrokers(self._options.servers, self._options.credentials)
            self._stream = Stream(self._options, self._brokers)
        return self._stream
