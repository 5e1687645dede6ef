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
from sandq.spark.jobs.session import failure, first_line
from sandq.spark.option_texts import SERVERS
from sandq.spark.source.positions import Positions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

BATCH_MESSAGES: Final = 1_000_000
"""Of one micro-batch: a failure costs no more than that again."""
HOLD_TTL: Final = "7d"
CHECKPOINT: Final = "_checkpoint"
FILES: Final = "_spark_metadata"
"""Spark's list of the files that count, by micro-batch."""
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
    if hold is not None:
        options["holdName"] = hold
    began_s = time.monotonic()
    try:
        _check_path(spark, path)
        messages, batches = _run(spark, options, path, f"{path.rstrip('/')}/{CHECKPOINT}", progress)
    except Exception as error:
        raise failure(error, "archive") from error
    return ArchiveSummary(pattern or ", ".join(topics), path, messages, batches, time.monotonic() - began_s)


def _check_path(spark: SparkSession, path: str) -> None:
    """InvalidRequest when files were written with another checkpoint than the one that is there, or none.

    Spark counts micro-batches in the checkpoint, and leaves out those whose number the list of files has already.
    """
    files, checkpoint = _numbers(spark, f"{path}/{FILES}"), _numbers(spark, f"{path}/{CHECKPOINT}/offsets")
    if files and max(files) > max(checkpoint, default=-1):
        raise InvalidRequest(
            f"{path}: its files are of {max(files) + 1} micro-batches, its checkpoint ({CHECKPOINT}) knows "
            f"{max(checkpoint, default=-1) + 1}: it was lost, or is another one's. What comes now would be left out; "
            "archive into another directory"
        )


def _numbers(spark: SparkSession, path: str) -> list[int]:
    """The numbers that files of a directory are named by, of any file system that Spark has."""
    from sandq.spark.jobs.files import file_system

    system, place = file_system(spark, path)
    if not system.exists(place):
        return []
    names = [status.getPath().getName().split(".")[0] for status in system.listStatus(place)]
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
    for _ in range(LOOKS):
        number = max(_numbers(spark, f"{path}/{FILES}"), default=None)
        if number is None:
            if _numbers(spark, f"{path}/{CHECKPOINT}/offsets"):
                return None
            raise InvalidRequest(f"{path}: there is no archive; `sandctl pipeline archive` makes one")
        if number not in _numbers(spark, f"{path}/{CHECKPOINT}/offsets"):
            raise InvalidRequest(f"{path}: how far it goes is not known, its checkpoint ({CHECKPOINT}) was lost")
        found = archived(spark, path)
        text = spark.read.text(f"{path}/{CHECKPOINT}/offsets/{number}", wholetext=True).collect()[0].value
        if max(_numbers(spark, f"{path}/{FILES}")) == number:
            return found, Positions.parse(json.loads(text.splitlines()[-1]))
    raise Unavailable(f"{path}: it is written to faster than it can be looked at; ask again")


def archive_schema() -> StructType:
    """The columns of an archive. Those that its directories are named by come last."""
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    from sandq.spark.datasource import struct_of
    from sandq.spark.source.options import Extra, SourceOptions, Topics

    columns = struct_of(SourceOptions(Topics(), extra=Extra(headers=True, raw=True, rank=True)))
    return StructType(
        [
            *(field for field in columns if field.name != "topic"),
            StructField("topic", StringType()),
            StructField("date", DateType()),
        ]
    )
