"""The job sql: a query over messages that are archived, due, or pending.

The view `messages` has every message of the topics once. In each partition, the archive is complete up to its last
position; from there on, messages are read from the brokers. Pending messages have their state at the moment of reading:
a message that is moved meanwhile may appear twice or not at all. A message that was archived, and moved after it came
due, appears with both times and the same `message_id`.

    topic, partition, offset, message_id, key, value, headers map<string,string>, timestamp, deliver_at,
    archived boolean, priority int, tenant

Keys, values and headers are texts here (UTF-8). Priority and tenant are null if a message has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import Instant, format_instant, instant_ms
from sandq.protocol.replies import TopicRecord
from sandq.spark.jobs.archive import archive_at
from sandq.spark.jobs.session import failure
from sandq.spark.option_texts import SERVERS
from sandq.spark.source.options import EARLIEST
from sandq.spark.source.positions import Positions, TopicPartition
from sandq.spark.source.streams import first_of
from sandq.sync import connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VIEW: Final = "messages"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def sql(
    spark: SparkSession,
    query: str,
    topics: Sequence[str],
    *,
    archive: str | None = None,
    views: Mapping[str, str] | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    fail_on_data_loss: bool = True,
    servers: Sequence[str] = (),
) -> DataFrame:
    """Return the result of a query over the view `messages` with these topics.

    `archive`: directory of the job archive. `views`: queries of further views by name, which are created in this order
    (`{"tasks": "select topic as queue, * from messages"}`). `since` and `until` (exclusive) limit the delivery times
    that are read.

    Raises InvalidRequest if the query is wrong. Raises HistoryGone if messages were trimmed that are not archived; with
    `fail_on_data_loss=False` that is logged as a warning.
    """
    if not topics:
        raise InvalidRequest("sql: name the topics of the query")
    for name in views or {}:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"view {name!r}: a name of letters, digits and _ is expected")
    try:
        found = messages(
            spark,
            topics,
            archive=archive,
            since=since,
            until=until,
            fail_on_data_loss=fail_on_data_loss,
            servers=servers,
        )
        found.createOrReplaceTempView(VIEW)
        for name, text in (views or {}).items():
            spark.sql(text).createOrReplaceTempView(name)
        return spark.sql(query)
    except Exception as error:
        raise failure(error, "sql") from error


def messages(
    spark: SparkSession,
    topics: Sequence[str],
    *,
    archive: str | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    fail_on_data_loss: bool = True,
    servers: Sequence[str] = (),
) -> DataFrame:
    """Return every message of these topics once, with the columns above."""
    from pyspark.sql import functions as F

    address = ",".join(servers) or DEFAULT_SERVER
    with connect(*address.split(","), name="sandq-sql") as client:
        records = [client.admin.topic(topic) for topic in topics]
    options = {SERVERS: address, "view": "all", "includeHeaders": "true", "includeRank": "true"}
    options["failOnDataLoss"] = str(fail_on_data_loss)
    if until is not None:
        options["endingTimestamp"] = str(instant_ms(until))
    partitions = {record.name: list(range(len(record.partitions))) for record in records}
    parts = []
    archived = None if archive is None else archive_at(spark, archive)
    if archived is None and since is not None:
        options["startingTimestamp"] = str(instant_ms(since))
    if archived is not None:
        old, positions = archived
        parts.append(_columns(old.where(F.col("topic").isin(list(topics))), F.lit(True)))
        starts = _starts(records, positions, since)
        if until is not None:
            # Leave out partitions whose archive reaches beyond `until`: it has all selected messages.
            end = offset_model.to_text(offset_model.pack(instant_ms(until), 0, 0, 0))
            partitions = {
                topic: [one for one in numbers if starts[topic][str(one)] == EARLIEST or starts[topic][str(one)] < end]
                for topic, numbers in partitions.items()
            }
        named = {
            topic: {str(one): starts[topic][str(one)] for one in numbers}
            for topic, numbers in partitions.items()
            if numbers
        }
        options["startingOffsets"] = json.dumps(named)
    partitions = {topic: numbers for topic, numbers in partitions.items() if numbers}
    if partitions:
        options["assign"] = json.dumps(partitions)
        parts.append(_columns(spark.read.format("sandq").options(**options).load(), F.lit(False)))
    found = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    for bound, below in ((since, False), (until, True)):
        if bound is not None:
            at = F.lit(format_instant(instant_ms(bound))).cast("timestamp")
            found = found.where(F.col("deliver_at") < at if below else F.col("deliver_at") >= at)
    return found


def _starts(records: Sequence[TopicRecord], positions: Positions, since: Instant | None) -> dict[str, dict[str, str]]:
    """Return for each partition the start of reading from the brokers: the end of its archive.

    A topic that is not archived is read from its first remaining message. A new partition of an archived topic must be
    complete: trimmed messages are an error.
    """
    known = {tp.number for tp in positions}
    least = offset_model.FIRST if since is None else offset_model.pack(instant_ms(since), 0, 0, 0)
    starts: dict[str, dict[str, str]] = {record.name: {} for record in records}
    for record in records:
        for partition in range(len(record.partitions)):
            tp = TopicPartition(record.number, partition)
            start = positions.cursors.get(tp, first_of(tp, known))
            is_open = start == offset_model.FIRST
            starts[record.name][str(partition)] = EARLIEST if is_open else offset_model.to_text(max(start, least))
    return starts


def _columns(frame: DataFrame, is_archived: Column) -> DataFrame:
    from pyspark.sql import functions as F

    pairs: Any = F.transform(
        F.coalesce("headers", F.array()),
        lambda one: F.struct(one["key"].alias("key"), one["value"].cast("string").alias("value")),
    )
    return frame.select(
        "topic",
        "partition",
        "offset",
        "message_id",
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        F.map_from_entries(pairs).alias("headers"),
        "timestamp",
        "deliver_at",
        is_archived.alias("archived"),
        "priority",
        "tenant",
    )
