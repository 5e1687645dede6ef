"""The writers that Spark calls, for batches (`BatchWriter`) and streams (`StreamWriter`), and `write_rows` for a task.

Each task connects a client and writes its rows; `partition_sender` makes sure that each row is stored once, also if
Spark repeats the task. The driver only adds up counts and raises refusals (`refusals`). Rows are stored and delivered
as soon as a task has written them, also if the write fails as a whole. So `abort` undoes nothing. After a failure, a
stream replays its last micro-batch, which stores the missing rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sandq.model.errors import InvalidRequest, InvalidSetting, SandqError
from sandq.spark.sink.chunks import Chunker, blocks
from sandq.spark.sink.columns import Columns, RowErrors, check_columns
from sandq.spark.sink.ending import check_ended
from sandq.spark.sink.identity import Identity, identity_in_stream, name_of_batch
from sandq.spark.sink.options import SinkOptions, parse_sink_options
from sandq.spark.sink.partitioner import Router
from sandq.spark.sink.refusals import Refusal, RowRefused, Stopped, is_refusal
from sandq.spark.sink.sender import Sender, Written
from sandq.sync import connect

log = logging.getLogger("sandq.spark")

CLIENT_NAME: Final = "sandq-spark-sink"


@dataclass
class Committed(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    written: Written
    refused: str | None = None
    """Text of the refusal, if rows of this or a different task of the write were refused."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer for `df.write.format("sandq")`. Raises InvalidSetting for wrong options or columns."""
    found, columns = _checked(options, schema, overwrite)
    return BatchWriter(found, columns, name_of_batch(found.write_id))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer for `df.writeStream.format("sandq")`. Raises InvalidSetting for wrong options or columns."""
    found, columns = _checked(options, schema, overwrite)
    found.check_stream()
    return StreamWriter(found, columns)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
    found = parse_sink_options(options)
    if overwrite:
        raise InvalidSetting('sandq sink: messages are never overwritten; use mode("append")')
    fields = [(one.name, one.dataType.simpleString()) for one in schema.fields]
    return found, check_columns(fields, found.topic)


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch; Spark pickles it and sends it to the tasks."""

    def __init__(self, options: SinkOptions, columns: Sequence[str], name: str) -> None:
        self._options = options
        self._columns = columns
        self._name = name
        self._refusal = Refusal()

    def write(self, iterator: Iterator[Any]) -> Committed:
        context = _context()
        resent = context.attemptNumber() > 0 or self._options.write_id is not None
        identity = Identity(self._name, context.partitionId(), resent=resent)
        return _written(iterator, self._columns, self._options, identity, self._refusal)

    def commit(self, messages: list[Any]) -> None:
        _check_refused(messages)
        log.info("%s", _summary(messages))

    def abort(self, messages: list[Any]) -> None:
        log.warning("the write failed; rows that were already sent stay: %s. %s", _summary(messages), self._advice)

    @property
    def _advice(self) -> str:
        if self._options.write_id is None:
            return "Writing again stores these rows twice; a writeId prevents that next time"
        return "Writing again with the same writeId stores the rest"


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream; Spark creates a new one for each micro-batch."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._refusal = Refusal()

    def write(self, iterator: Iterator[Any]) -> Committed:
        context = _context()
        identity = identity_in_stream(context.partitionId(), context.getLocalProperty)
        return _written(iterator, self._columns, self._options, identity, self._refusal)

    def commit(self, messages: list[Any], batchId: int) -> None:
        _check_refused(messages)
        log.info("micro-batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: list[Any], batchId: int) -> None:
        log.warning(
            "micro-batch %d failed; rows that were already sent stay: %s. Its replay stores the rest",
            batchId,
            _summary(messages),
        )


def _written(
    rows: Iterator[Any], columns: Sequence[str], options: SinkOptions, identity: Identity, refusal: Refusal
) -> Committed:
    """Write the rows of a Spark task and return its result. Raises only errors that a retry may fix."""
    directory = SparkFiles.getRootDirectory()

    def checked() -> Iterator[Any]:
        for batch in rows:
            refusal.check(directory)
            yield batch

    try:
        refusal.check(directory)
        return Committed(write_rows(checked(), columns, options, identity, check_ended))
    except Stopped as stopped:
        return Committed(Written(), str(stopped))
    except SandqError as error:
        if not is_refusal(error):
            raise
        refusal.note(directory, error.message)
        return Committed(Written(), error.message)


def _check_refused(messages: Sequence[Committed | None]) -> None:
    """Raise RowRefused if a task was refused."""
    for refused in [message.refused for message in messages if message is not None and message.refused is not None]:
        raise RowRefused(refused)


def write_rows(
    batches: Iterable[Any],
    columns: Sequence[str],
    options: SinkOptions,
    identity: Identity,
    ended: Callable[[], None] = lambda: None,
) -> Written:
    """Write the rows of a task; return when all are stored.

    `batches` are pyarrow.RecordBatch with the columns of `check_columns`. `ended` is called after the last one; it
    raises if the rows were cut off there.

    Raises InvalidRequest if a row cannot be written; rows before it may be stored. Raises ChangedRows if an earlier
    attempt stored different rows; also UnknownTopic, DuplicateKey. Temporary errors are raised after
    `partition_sender.RETRY_S`; the task may be repeated then.
    """
    with connect(*options.servers, name=CLIENT_NAME, **options.credentials.arguments()) as client:
        sender = Sender(client, identity, again=options.again)
        try:
            errors = RowErrors(identity.partition)
            read = Columns(columns, sender.checks, errors)
            router = Router(options.topic, sender.topic, identity.partition, errors)
            chunker = Chunker(options.on_conflict, sender.checks.batch_bytes)
            first = 0
            for block in blocks(_normal(batches, read, ended)):
                for target, rows in router.split(block, first):
                    chunker.add(target, rows)
                for chunk in chunker.full():
                    sender.send(chunk)
                first += block.num_rows
            for chunk in chunker.rest():
                sender.send(chunk)
            return sender.finish()
        finally:
            sender.close()


def _normal(batches: Iterable[Any], columns: Columns, ended: Callable[[], None]) -> Iterator[Any]:
    first = 0
    for batch in batches:
        yield columns.read(batch, first)
        first += batch.num_rows
    ended()  # check before the last block is returned, because that block may fill chunks


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidRequest("sandq sink: rows can only be written in a task of Spark; no task is running here")
    return context


def _summary(messages: Sequence[Committed | None]) -> str:
    """Return the added counts of all tasks as a text. None stands for a task that failed."""
    done = [message.written for message in messages if message is not None and message.refused is None]
    rows, chunks = sum(one.rows for one in done), sum(one.chunks for one in done)
    topics = sorted({topic for one in done for topic in one.topics})
    text = f"{rows} rows in {chunks} chunks by {len(done)} tasks, to {', '.join(topics) or 'no topic'}"
    if already := sum(one.already_stored for one in done):
        text += f"; {already} chunks were stored by earlier attempts"
    if again := sum(one.again for one in done):
        text += f"; {again} chunks were written again, because their rows had changed"
    if failed := len(messages) - len(done):
        text += f"; {failed} tasks failed, and may have stored some of their rows"
    return text
