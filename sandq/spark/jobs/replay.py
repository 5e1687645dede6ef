"""The job replay: sends messages of an archive again, unchanged, at once or at different times.

    at once     in the order of their delivery times
    shifted     at their delivery times plus a shift; times in the past are due at once

A rate limits the number of messages that come due per second; further messages come later, in their order. Because all
messages must be in one order then, a single task sorts and sends them.

A repeated replay sends nothing twice, as with the job schedule. Its write id is computed from the arguments, and from
the archive's files of the selected days and topics. If the job archive adds files to one of these days, or a compaction
merges them, the replay is a new write and sends all messages again. So use an `until` whose day is over. While a replay
is unfinished, the archive is not compacted (`replay_notes`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sandq.client.positions import shift_ms
from sandq.model.errors import InvalidRequest, Unavailable
from sandq.model.names import ACCEPTING_KINDS
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import Duration, Instant, format_instant, instant_ms
from sandq.spark.jobs.archive import archived
from sandq.spark.jobs.calling import CLIENT_NAME
from sandq.spark.jobs.directories import SparkDirectories
from sandq.spark.jobs.session import failure
from sandq.spark.option_texts import SERVERS
from sandq.sync import connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RATE_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of `replay`. Times are epoch milliseconds.

    `first_ms` and `last_ms`: first and last delivery time; None if all messages are due at once. `left_out`: fields
    (priority, tenant) that some messages have but the topic does not accept.
    """

    topic: str
    path: str
    write_id: str
    messages: int
    first_ms: int | None
    last_ms: int | None
    left_out: tuple[str, ...]
    dry_run: bool
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "job": "replay",
            "topic": self.topic,
            "path": self.path,
            "write_id": self.write_id,
            "dry_run": self.dry_run,
            "messages": self.messages,
            "first": None if self.first_ms is None else format_instant(self.first_ms),
            "last": None if self.last_ms is None else format_instant(self.last_ms),
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 3),
        }

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        done = "would be sent" if self.dry_run else "sent"
        found = [f"{self.topic}: {self.messages:,} messages of {self.path} {done}"]
        if self.first_ms is not None and self.last_ms is not None:
            found.append(f"  due       {format_instant(self.first_ms)} to {format_instant(self.last_ms)}")
        if self.left_out:
            found.append(f"  left out  {', '.join(self.left_out)}: topic {self.topic} does not accept it")
        return [*found, f"  took      {self.seconds:.1f} s", f"  write id  {self.write_id}"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The selection of messages, and their new times. `rate`: messages per second."""

    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    where: str | None = None
    shift_ms: int | None = None
    start_ms: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate <= RATE_MAX:
            raise InvalidRequest(f"rate: more than 0 and up to {RATE_MAX:,} messages a second, not {self.rate}")
        if self.rate is not None and self.start_ms is None:
            raise InvalidRequest("rate: it needs a start time (start)")


def replay(
    spark: SparkSession,
    path: str,
    topic: str,
    *,
    topics: Sequence[str] = (),
    since: Instant | None = None,
    until: Instant | None = None,
    where: str | None = None,
    shift: Duration | None = None,
    start: Instant | None = None,
    rate: float | None = None,
    write_id: str | None = None,
    dry_run: bool = False,
    servers: Sequence[str] = (),
) -> ReplaySummary:
    """Send messages of an archive to a topic.

    `topics`, `since`, `until` (delivery times; the end is exclusive) and `where` (SQL over the archive's columns)
    select the messages. `shift` is added to each delivery time, and may be negative. `start`: no message is due before
    this time. `rate`: maximum number of messages that come due per second, from `start` on. `dry_run`: only count.
    Priorities and tenants are sent only to topics that accept them.

    Raises InvalidRequest for wrong arguments, UnknownTopic. After any other error, the same call sends the missing
    messages.
    """
    asked = asked_for(topics=topics, since=since, until=until, where=where, shift=shift, start=start, rate=rate)
    began_s = time.monotonic()
    try:
        sent = _run(spark, path, topic, asked, write_id, servers, dry_run)
    except Exception as error:
        raise failure(error, "replay") from error
    write_id, messages, first_ms, last_ms, left_out = sent
    return ReplaySummary(
        topic=topic,
        path=path,
        write_id=write_id,
        messages=messages,
        first_ms=first_ms,
        last_ms=last_ms,
        left_out=left_out,
        dry_run=dry_run,
        seconds=time.monotonic() - began_s,
    )


def asked_for(
    *,
    topics: Sequence[str] = (),
    since: Instant | None = None,
    until: Instant | None = None,
    where: str | None = None,
    shift: Duration | None = None,
    start: Instant | None = None,
    rate: float | None = None,
) -> Replayed:
    """Check the arguments of `replay`. Raises InvalidRequest, InvalidTime."""
    return Replayed(
        tuple(topics),
        None if since is None else instant_ms(since),
        None if until is None else instant_ms(until),
        where,
        None if shift is None else shift_ms(shift),
        None if start is None else instant_ms(start),
        rate,
    )


def _run(
    spark: SparkSession, path: str, topic: str, asked: Replayed, write_id: str | None, servers: Sequence[str], dry: bool
) -> tuple[str, int, int | None, int | None, tuple[str, ...]]:
    from pyspark.sql import functions as F

    from sandq.spark.jobs.checking import own_session, set_all
    from sandq.spark.jobs.files import cutting, find_files, write_id_of
    from sandq.spark.jobs.replay_notes import noted
    from sandq.spark.jobs.session import active

    with connect(*servers, name=CLIENT_NAME) as client:
        topic_kind = client.admin.topic(topic).kind
    accepted = [name for name, kinds in ACCEPTING_KINDS.items() if topic_kind in kinds]
    # Each attempt must have the same rows in the same Spark partitions.
    own = own_session(spark, {"spark.sql.adaptive.enabled": "false"})
    existing = {file.path: file for file in find_files(spark, [path])}
    frame = archived(own, path)
    selected = sorted(file for file in files_of(frame) if is_asked(file, asked))
    if not existing.keys() >= set(selected):
        raise Unavailable(f"{path}: it was written to at the same moment; nothing was sent, run it again")
    files = [existing[file] for file in selected]
    name = write_id or write_id_of(topic, files, {"replay": repr(asked)}, job="replay")
    set_all(own, cutting(files))
    rows = timed(chosen(frame, asked), asked)
    ranked = [F.count(name).alias(name) for name in ACCEPTING_KINDS]
    counted = rows.agg(F.count("*"), F.min("due_ms"), F.max("due_ms"), *ranked).collect()[0]
    if not dry and counted[0]:
        sent = rows.withColumn("deliver_at", F.timestamp_millis("due_ms"))
        options = {SERVERS: ",".join(servers) or DEFAULT_SERVER, "topic": topic, "writeId": name}
        columns = ("key", "value", "raw_headers", "ttl_ms", "deliver_at", *accepted)
        with noted(SparkDirectories(spark), path, name, [file.path for file in files]), active(own):
            sent.select(*columns).write.format("sandq").mode("append").options(**options).save()
    left_out = tuple(rank for rank in ACCEPTING_KINDS if counted[rank] and rank not in accepted)
    return name, counted[0], counted[1], counted[2], left_out


def files_of(archive: DataFrame) -> set[str]:
    """Return the paths of an archive's valid files, in the form of `find_files`.

    Unfinished files of killed runs are not valid, and neither are files that a compaction has replaced.
    """
    java: Any = archive.sparkSession._jvm
    return {str(java.org.apache.hadoop.fs.Path(java.java.net.URI(uri)).toString()) for uri in archive.inputFiles()}


def is_asked(file: str, asked: Replayed) -> bool:
    """Return whether a file may have selected messages, by the topic and the day in the names of its directories."""
    parts = dict(part.split("=", 1) for part in file.split("/") if "=" in part)
    if asked.topics and parts.get("topic") not in asked.topics:
        return False
    day = parts.get("date", "")
    first = "" if asked.since_ms is None else format_instant(asked.since_ms)[:10]
    return first <= day and (asked.until_ms is None or day <= format_instant(asked.until_ms)[:10])


def chosen(rows: DataFrame, asked: Replayed) -> DataFrame:
    """Return the selected messages."""
    from pyspark.sql import functions as F

    if asked.topics:
        rows = rows.where(F.col("topic").isin(list(asked.topics)))
    for bound_ms, is_end in ((asked.since_ms, False), (asked.until_ms, True)):
        if bound_ms is not None:
            at, date = F.timestamp_millis(F.lit(bound_ms)), F.date_from_unix_date(F.lit(bound_ms // 86_400_000))
            # Directories are named by day: with a condition on the day, Spark does not open those of other days.
            in_time = (F.col("deliver_at") < at) if is_end else (F.col("deliver_at") >= at)
            rows = rows.where(in_time & ((F.col("date") <= date) if is_end else (F.col("date") >= date)))
    return rows if asked.where is None else rows.where(asked.where)


def timed(rows: DataFrame, asked: Replayed) -> DataFrame:
    """Add `due_ms`, the new delivery time of each message (null: at once), and sort each Spark partition by time.

    With a rate, each message is due at least one step (1/rate) after the previous one. The recurrence
    due_k = max(time_k, due_(k-1) + step) has the closed form due_k = k * step + max over j <= k of (time_j - j * step),
    which a window function can compute.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    order = ("deliver_at", "topic", "partition", "offset")
    wanted = _times_before_rate(asked)
    if asked.rate is None:
        return rows.sortWithinPartitions(*order).withColumn("due_ms", wanted)
    step = F.lit(1000 / asked.rate)
    window = Window.partitionBy(F.lit(0)).orderBy(*order)  # a constant, to get one partition with all rows
    return (
        rows.withColumn("position", F.row_number().over(window) - 1)
        .withColumn("offset_ms", F.max(wanted - F.col("position") * step).over(window))
        .withColumn("due_ms", F.ceil(F.col("position") * step + F.col("offset_ms")).cast("bigint"))
    )


def _times_before_rate(asked: Replayed) -> Column:
    """Return the delivery times (ms; null: immediately) before a rate spreads them.

    With `shift_ms`, they are the old times plus the shift, but not before `start_ms`.
    """
    from pyspark.sql import functions as F

    start = F.lit(asked.start_ms).cast("bigint")
    if asked.shift_ms is None:
        return start
    shifted = F.unix_millis("deliver_at") + F.lit(asked.shift_ms)
    return shifted if asked.start_ms is None else F.greatest(shifted, start)
