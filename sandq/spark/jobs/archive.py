"""The job archive: writes messages that came due since the last run to Parquet files, each message once.

    PATH/topic=orders/date=2030-01-31/part-....parquet      the messages
    PATH/_checkpoint                                        the positions of the last run

If a message is moved after it came due, it is in the archive twice, with both times and the same `message_id`.

A run ends when it has all messages that were closed when it began. The next run, for example by cron, continues from
there. If a run is killed, its unfinished files are not listed in PATH/_spark_metadata, so Spark does not read them.
Other programs that read PATH should use that list as well. A hold keeps the brokers from trimming messages that are not
archived yet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sandq.model.errors import InvalidRequest, Unavailable
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import Duration, duration_ms
from sandq.spark.jobs.archive_log import FILES
from sandq.spark.jobs.directories import Directories, LocalDirectories, SparkDirectories
from sandq.spark.jobs.session import failure, first_line
from sandq.spark.option_texts import SERVERS
from sandq.spark.source.brokers import ClientBrokers
from sandq.spark.source.options import parse_options
from sandq.spark.source.positions import Positions
from sandq.spark.source.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

BATCH_MESSAGES: Final = 1_000_000
"""Messages per micro-batch; after a failure at most this many are read again."""
HOLD_TTL: Final = "7d"
CHECKPOINT: Final = "_checkpoint"
READ_ATTEMPTS: Final = 10
"""Maximum number of attempts to read the state of an archive that grows meanwhile."""
POLL_S: Final = 0.2
SLOW_START: Final = "Timed out while waiting for the Python worker to connect back"
"""Error of Spark if a stream's source does not start within 10 s, as on a busy machine; the time cannot be set."""
START_ATTEMPTS: Final = 5
"""Maximum number of starts in a run if the source starts too slowly; the checkpoint keeps what was done."""

Progress = Callable[[int, int], object]
"""Called with the number of archived messages so far, and the number of micro-batches."""


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """The result of a run of `archive`."""

    topics: str
    path: str
    messages: int
    batches: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Messages per second, over the whole run; None without messages."""
        return self.messages / self.seconds if self.messages and self.seconds > 0 else None

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "job": "archive",
            "topics": self.topics,
            "path": self.path,
            "messages": self.messages,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
            "rate": None if self.rate is None else round(self.rate, 1),
        }

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        rate = "" if self.rate is None else f", {self.rate:,.0f} messages/s"
        took = f"  took      {self.seconds:.1f} s, micro-batches: {self.batches}{rate}"
        return [f"{self.topics}: {self.messages:,} messages archived", f"  in        {self.path}", took]


def archive(
    spark: SparkSession,
    topics: Sequence[str],
    path: str,
    *,
    pattern: str | None = None,
    servers: Sequence[str] = (),
    batch_messages: int = BATCH_MESSAGES,
    hold: str | None = None,
    hold_ttl: Duration = HOLD_TTL,
    fail_on_data_loss: bool = True,
    progress: Progress | None = None,
) -> ArchiveSummary:
    """Archive the due messages of `topics`, or of topics that match `pattern`, that are not in `path` yet.

    `hold`: name of the hold, which keeps the brokers from trimming unarchived messages until `hold_ttl` after the last
    run; by default a random name, chosen when `path` is new.

    Raises HistoryGone if messages were trimmed before they were archived; with `fail_on_data_loss=False` that is logged
    as a warning. Raises InvalidRequest if `path` has lost its checkpoint.
    """
    options = _options(topics, pattern, servers, batch_messages, hold, hold_ttl, fail_on_data_loss)
    began_s = time.monotonic()
    messages = batches = 0
    try:
        at = SparkDirectories(spark)
        _check_path(at, path)
        if _has_new_messages(at, path, options):
            messages, batches = _run(spark, options, path, f"{path.rstrip('/')}/{CHECKPOINT}", progress)
    except Exception as error:
        raise failure(error, "archive") from error
    return ArchiveSummary(pattern or ", ".join(topics), path, messages, batches, time.monotonic() - began_s)


def without_news(
    topics: Sequence[str],
    path: str,
    *,
    pattern: str | None = None,
    servers: Sequence[str] = (),
    batch_messages: int = BATCH_MESSAGES,
    hold: str | None = None,
    hold_ttl: Duration = HOLD_TTL,
    fail_on_data_loss: bool = True,
) -> ArchiveSummary | None:
    """Return the summary of `archive` if there is nothing to archive; this needs no Spark.

    `path` is a directory of this machine. Returns None if there are new messages, or if `path` has no archive yet.
    Raises the same errors as `archive`.
    """
    options = _options(topics, pattern, servers, batch_messages, hold, hold_ttl, fail_on_data_loss)
    began_s = time.monotonic()
    at = LocalDirectories()
    _check_path(at, path)
    if _has_new_messages(at, path, options):
        return None
    return ArchiveSummary(pattern or ", ".join(topics), path, 0, 0, time.monotonic() - began_s)


def _options(
    topics: Sequence[str],
    pattern: str | None,
    servers: Sequence[str],
    batch_messages: int,
    hold: str | None,
    hold_ttl: Duration,
    fail_on_data_loss: bool,
) -> dict[str, str]:
    """Return the options of the source. Raises InvalidRequest."""
    if bool(topics) is (pattern is not None):
        raise InvalidRequest("archive: name either topics or a pattern")
    options = {
        SERVERS: ",".join(servers) or DEFAULT_SERVER,
        **({"subscribe": ",".join(topics)} if pattern is None else {"subscribePattern": pattern}),
        "includeHeaders": "true",
        "includeRaw": "true",
        "includeRank": "true",
        "maxOffsetsPerTrigger": str(batch_messages),
        "holdTtl": f"{duration_ms(hold_ttl)}ms",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    return options if hold is None else {**options, "holdName": hold}


def _has_new_messages(at: Directories, path: str, options: Mapping[str, str]) -> bool:
    """Return whether there are messages to archive after the last position. This also renews the hold."""
    done = _numbers(at, f"{path}/{CHECKPOINT}/commits")
    last = max(_numbers(at, f"{path}/{CHECKPOINT}/offsets"), default=None)
    if last is None or last not in done:
        return True
    position = _position(at, path, last)
    found = parse_options(options)
    brokers = ClientBrokers(found.servers, found.credentials)
    try:
        return Stream(found, brokers).latest(position, None) != position
    finally:
        brokers.close()


def _position(at: Directories, path: str, number: int) -> Positions:
    """Return the end of a micro-batch from the checkpoint. Raises InvalidRequest if the file is invalid."""
    file = f"{path}/{CHECKPOINT}/offsets/{number}"
    try:
        return Positions.parse(json.loads(at.text(file).splitlines()[-1]))
    except (ValueError, IndexError):
        raise InvalidRequest(f"{file}: it is broken; the archive cannot continue from this checkpoint") from None


def _check_path(at: Directories, path: str) -> None:
    """Raise InvalidRequest if the files were written with a different checkpoint, or if the checkpoint is missing.

    Spark numbers micro-batches by the checkpoint, and skips those whose number is already in the list of files. So with
    a wrong checkpoint, messages would silently be missing.
    """
    files, checkpoint = _numbers(at, f"{path}/{FILES}"), _numbers(at, f"{path}/{CHECKPOINT}/offsets")
    if files and max(files) > max(checkpoint, default=-1):
        raise InvalidRequest(
            f"{path}: its files are from {max(files) + 1} micro-batches, but its checkpoint ({CHECKPOINT}) has "
            f"{max(checkpoint, default=-1) + 1}: it was lost, or belongs to a different archive. New messages would be "
            "left out; archive into a different directory"
        )


def _numbers(at: Directories, path: str) -> list[int]:
    """Return the numbers with which the names of a directory's files begin."""
    names = [name.split(".")[0] for name in at.names(path)]
    return [int(name) for name in names if name.isdecimal()]


def _run(
    spark: SparkSession, options: Mapping[str, str], path: str, checkpoint: str, progress: Progress | None
) -> tuple[int, int]:
    seen: dict[int, int] = {}
    slow_starts = 0
    while True:
        query = _start(spark, options, path, checkpoint)
        try:
            done = False
            while not done:
                done = query.awaitTermination(POLL_S)
                seen |= {one.batchId: one.numInputRows for one in query.recentProgress if one.numInputRows}
                if progress is not None:
                    progress(sum(seen.values()), len(seen))
            return sum(seen.values()), len(seen)
        except Exception as error:
            slow_starts += 1
            if SLOW_START not in first_line(error) or slow_starts == START_ATTEMPTS:
                raise
        finally:
            query.stop()


def _start(spark: SparkSession, options: Mapping[str, str], path: str, checkpoint: str) -> StreamingQuery:
    from pyspark.sql import functions as F

    frame = spark.readStream.format("sandq").options(**options).load()
    return (
        frame.withColumn("date", day(F.col("deliver_at")))
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("path", path)
        .option("checkpointLocation", checkpoint)
        .option("compression", "zstd")
        .trigger(availableNow=True)
        .start()
    )


def day(at: Column) -> Column:
    """Return the day of a timestamp in UTC, independent of the session's time zone."""
    from pyspark.sql import functions as F

    return F.date_from_unix_date(F.floor(F.unix_seconds(at) / 86_400).cast("int"))


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Return the archived messages: all columns of the source, and `date`.

    Priorities and tenants are null in files of versions that did not archive them.
    """
    return spark.read.schema(archive_schema()).parquet(path)


def archive_at(spark: SparkSession, path: str) -> tuple[DataFrame, Positions] | None:
    """Return the archived messages, and the positions up to which they are complete. None if nothing is archived yet.

    Both are from the same moment: the archive has all messages before the positions, and none after them. Raises
    InvalidRequest if there is no archive, or if its checkpoint is missing.
    """
    at = SparkDirectories(spark)
    for _ in range(READ_ATTEMPTS):
        number = max(_numbers(at, f"{path}/{FILES}"), default=None)
        if number is None:
            if _numbers(at, f"{path}/{CHECKPOINT}/offsets"):
                return None
            raise InvalidRequest(f"{path}: there is no archive; `sandctl pipeline archive` creates one")
        if number not in _numbers(at, f"{path}/{CHECKPOINT}/offsets"):
            raise InvalidRequest(
                f"{path}: its last position is unknown, because its checkpoint ({CHECKPOINT}) was lost"
            )
        found = archived(spark, path)
        position = _position(at, path, number)
        if max(_numbers(at, f"{path}/{FILES}")) == number:
            return found, position
    raise Unavailable(f"{path}: the archive grows faster than it can be read; try again")


def archive_schema() -> StructType:
    """Return the columns of an archive. The columns in the names of its directories come last."""
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    from sandq.spark.datasource import struct_of
    from sandq.spark.source.options import Extra, SourceOptions, Topics

    columns = struct_of(SourceOptions(topics=Topics(), extra=Extra(headers=True, raw=True, rank=True)))
    return StructType(
        [
            *(field for field in columns if field.name != "topic"),
            StructField("topic", StringType()),
            StructField("date", DateType()),
        ]
    )
