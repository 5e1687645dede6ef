"""The job archive: what came due since the last run goes to Parquet files, each message once.

    PATH/topic=orders/date=2030-01-31/part-....parquet      and PATH/_checkpoint, which knows how far that is

A message that is moved after it came due is in the archive twice, at both times; its `message_id` is the same.

It runs until it has everything that is closed when it begins, and ends; the next run goes on from there (a cron job,
say). What a run was writing when it was cut off is not listed in PATH/_spark_metadata, so that Spark does not read it;
other programs that read PATH should go by that list, too. A hold keeps the brokers from trimming what is not archived.
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
"""Of one micro-batch: a failure costs no more than that again."""
HOLD_TTL: Final = "7d"
CHECKPOINT: Final = "_checkpoint"
LOOKS: Final = 10
"""An archive that grew while it was looked at is looked at again, so many times."""
POLL_S: Final = 0.2
LATE: Final = "Timed out while waiting for the Python worker to connect back"
"""Spark gives a stream's source 10 s to begin, and no setting to change that: a busy machine can take longer."""
STARTS: Final = 5
"""Of one run, when its source did not begin in time: the checkpoint has what was done."""

Progress = Callable[[int, int], object]
"""Called with how many messages are archived so far, in how many micro-batches."""


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """What a run of `archive` did."""

    topics: str
    path: str
    messages: int
    batches: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Messages a second, over the whole run."""
        return self.messages / self.seconds if self.messages and self.seconds > 0 else None

    def record(self) -> dict[str, Any]:
        """For programs."""
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
        """For people."""
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
    """Archive what is due of topics, or of those whose name matches `pattern`, and was not archived in `path` yet.

    `hold`: a name for what keeps the brokers from trimming what is not archived, for `hold_ttl` after the last run; one
    is drawn when `path` is new. HistoryGone: something was trimmed before it was
    archived; with `fail_on_data_loss=False` that is a warning. InvalidRequest: `path` has lost its checkpoint.
    """
    options = _options(topics, pattern, servers, batch_messages, hold, hold_ttl, fail_on_data_loss)
    began_s = time.monotonic()
    messages = batches = 0
    try:
        at = SparkDirectories(spark)
        _check_path(at, path)
        if _has_news(at, path, options):
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
    """What `archive` returns when there is nothing to archive in a directory of this machine, found out without Spark;
    None when there is, or `path` has none yet. Raises as `archive`."""
    options = _options(topics, pattern, servers, batch_messages, hold, hold_ttl, fail_on_data_loss)
    began_s = time.monotonic()
    at = LocalDirectories()
    _check_path(at, path)
    if _has_news(at, path, options):
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
    """Of the source. InvalidRequest."""
    if bool(topics) is (pattern is not None):
        raise InvalidRequest("archive: topics or a pattern, one of them, says what is archived")
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


def _has_news(at: Directories, path: str, options: Mapping[str, str]) -> bool:
    """Whether there is something to archive, behind what an archive has; what is not is held anew."""
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
    """Where a micro-batch ends, by the checkpoint. InvalidRequest when it does not say."""
    place = f"{path}/{CHECKPOINT}/offsets/{number}"
    try:
        return Positions.parse(json.loads(at.text(place).splitlines()[-1]))
    except (ValueError, IndexError):
        raise InvalidRequest(f"{place}: it is broken; the archive cannot go on by this checkpoint") from None


def _check_path(at: Directories, path: str) -> None:
    """InvalidRequest when files were written with another checkpoint than the one that is there, or none.

    Spark counts micro-batches in the checkpoint, and leaves out those whose number the list of files has already.
    """
    files, checkpoint = _numbers(at, f"{path}/{FILES}"), _numbers(at, f"{path}/{CHECKPOINT}/offsets")
    if files and max(files) > max(checkpoint, default=-1):
        raise InvalidRequest(
            f"{path}: its files are of {max(files) + 1} micro-batches, its checkpoint ({CHECKPOINT}) knows "
            f"{max(checkpoint, default=-1) + 1}: it was lost, or is another one's. What comes now would be left out; "
            "archive into another directory"
        )


def _numbers(at: Directories, path: str) -> list[int]:
    """The numbers that files of a directory are named by."""
    names = [name.split(".")[0] for name in at.names(path)]
    return [int(name) for name in names if name.isdecimal()]


def _run(
    spark: SparkSession, options: Mapping[str, str], path: str, checkpoint: str, progress: Progress | None
) -> tuple[int, int]:
    seen: dict[int, int] = {}
    late = 0
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
            late += 1
            if LATE not in first_line(error) or late == STARTS:
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
    """The day of a time stamp in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as F

    return F.date_from_unix_date(F.floor(F.unix_seconds(at) / 86_400).cast("int"))


def archived(spark: SparkSession, path: str) -> DataFrame:
    """What `archive` has put there: all of the source's columns, and `date`. Files of versions that archived no
    priorities and tenants have nulls there."""
    return spark.read.schema(archive_schema()).parquet(path)


def archive_at(spark: SparkSession, path: str) -> tuple[DataFrame, Positions] | None:
    """What is archived, and how far that goes, as of one moment: whatever was to be archived before these positions is
    there, and nothing behind them. None: nothing yet. InvalidRequest when there is no archive, or no checkpoint of it.
    """
    at = SparkDirectories(spark)
    for _ in range(LOOKS):
        number = max(_numbers(at, f"{path}/{FILES}"), default=None)
        if number is None:
            if _numbers(at, f"{path}/{CHECKPOINT}/offsets"):
                return None
            raise InvalidRequest(f"{path}: there is no archive; `sandctl pipeline archive` makes one")
        if number not in _numbers(at, f"{path}/{CHECKPOINT}/offsets"):
            raise InvalidRequest(f"{path}: how far it goes is not known, its checkpoint ({CHECKPOINT}) was lost")
        found = archived(spark, path)
        position = _position(at, path, number)
        if max(_numbers(at, f"{path}/{FILES}")) == number:
            return found, position
    raise Unavailable(f"{path}: it is written to faster than it can be looked at; ask again")


def archive_schema() -> StructType:
    """The columns of an archive. Those that its directories are named by come last."""
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
