"""Archive the messages of a topic in Parquet files by day, and count them by tenant.

    python archive_topic.py orders --to archive --broker 127.0.0.1:7170

    archive/date=2030-01-31/part-....parquet    the messages, by the day of their delivery time in UTC
    archive/_checkpoint                         the position of the last run in each partition
    archive/_spark_metadata                     the list of valid files; Spark reads only these

Each run adds the messages that became due since the last run, each message once. A run without new messages adds
nothing. If a run is killed, the next run continues from the checkpoint, and the unfinished files do not count.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

VALUE = "order bigint, cents bigint"
"""Columns in the JSON value of a message. Missing ones are null."""
COLUMNS = (
    "message_id string, partition int, offset string, tenant string, stored_at timestamp, deliver_at timestamp, "
    f"{VALUE}, value string, date date"
)
"""Columns of the archive."""
BATCH_MESSAGES = 1_000_000
"""Messages of a micro-batch. After a failure, at most this number is read again."""


def archive(spark: SparkSession, topic: str, path: str, broker: str) -> None:
    """Add the messages that became due since the last run. Raises Spark's error if the source or the sink fails."""
    messages = (
        spark.readStream.format("sandq")
        .option("sandq.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("includeRank", "true")
        .option("maxOffsetsPerTrigger", BATCH_MESSAGES)
        # For this time after a run, the nodes keep messages that are not archived.
        .option("holdTtl", "7d")
        .load()
    )
    text = F.col("value").cast("string")
    rows = (
        messages.withColumn("json", F.from_json(text, VALUE))
        .withColumn("tenant", F.coalesce("tenant", F.lit("default")))
        .withColumn("date", day_of(F.col("deliver_at")))
        .withColumnRenamed("timestamp", "stored_at")
        .select("message_id", "partition", "offset", "tenant", "stored_at", "deliver_at", "json.*", text, "date")
    )
    query = (
        rows.writeStream.format("parquet")
        .partitionBy("date")
        .option("path", path)
        .option("checkpointLocation", f"{path}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def day_of(time: Column) -> Column:
    """Return the day in UTC, whatever the time zone of the session is."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(time) / 86_400).cast("int"))


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Return the archive."""
    return spark.read.schema(COLUMNS).parquet(path)


def per_tenant(messages: DataFrame) -> DataFrame:
    """Return the number of messages of each day and tenant, their sum, and how long before delivery they were sent."""
    ahead_s = F.unix_millis("deliver_at") / 1000 - F.unix_millis("stored_at") / 1000
    return (
        messages.groupBy("date", "tenant")
        .agg(
            F.count("*").alias("messages"),
            F.sum("cents").alias("cents"),
            F.round(F.avg(ahead_s)).cast("bigint").alias("seconds_ahead"),
        )
        .orderBy("date", "tenant")
    )


def main() -> None:
    options = argparse.ArgumentParser(description="Archive the messages of a topic, and count them by tenant.")
    options.add_argument("topic")
    options.add_argument("--to", required=True, metavar="DIRECTORY", help="directory of the archive")
    options.add_argument("--broker", default=os.environ.get("BROKER", "127.0.0.1:7170"), metavar="HOST:PORT,...")
    given = options.parse_args()
    spark = SparkSession.builder.appName("spark-archive").getOrCreate()
    try:
        archive(spark, given.topic, given.to, given.broker)
        per_tenant(archived(spark, given.to)).show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
