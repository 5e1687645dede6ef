"""The rate of a replay applies to the whole job, with any number of Spark partitions.

The tests need no broker and wait for nothing: they check the computed delivery times."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.spark.jobs.replay import asked_for, timed

START_MS = 1_900_000_000_000
OLD_S = 1_800_000_000
PARTS = 7


def archive(spark: Any, counts: list[int], spacing: str) -> Any:
    """Return the rows of an archive, with one Spark partition for each number of rows in `counts`.

    `spacing`: SQL expression for the delivery time of row `place` of partition `part`, in seconds after the first."""
    from pyspark.sql import functions as F

    most = max(counts)
    rows = spark.range(0, most * len(counts), 1, numPartitions=len(counts))
    rows = rows.withColumn("part", F.expr(f"int(id div {most})")).withColumn("place", F.expr(f"int(id % {most})"))
    kept = F.lit(False)
    for part, count in enumerate(counts):
        kept = kept | ((F.col("part") == part) & (F.col("place") < count))
    return rows.where(kept).select(
        F.expr(f"timestamp_seconds({OLD_S} + {spacing})").alias("deliver_at"),
        F.lit("t").alias("topic"),
        F.col("part").alias("partition"),
        F.format_string("%06d", "place").alias("offset"),
    )


def due(rows: Any, **asked: Any) -> list[tuple[int, int, str]]:
    """Return (new delivery time, partition, offset) of each message, by time."""
    found = timed(rows, asked_for(start=START_MS, **asked)).select("due_ms", "partition", "offset").collect()
    return sorted((row.due_ms, row.partition, row.offset) for row in found)


def most_in_a_second(times: list[int]) -> int:
    first, most = 0, 0
    for last, at_ms in enumerate(times):
        while times[first] <= at_ms - 1000:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.parametrize("rate", [3, 10])
def test_rate_applies_to_the_whole_job(spark: Any, rate: int) -> None:
    counts = [40, 0, 40, 3, 40, 40, 17]
    assert len(counts) == PARTS
    rows = due(archive(spark, counts, "place"), rate=rate)
    assert len(rows) == sum(counts)
    times = [at_ms for at_ms, _, _ in rows]
    assert times[0] == START_MS, "the first message is neither early nor late"
    assert most_in_a_second(times) <= rate
    for part in range(PARTS):
        offsets = [offset for _, partition, offset in rows if partition == part]
        assert offsets == sorted(offsets), "in the order in which they were due"


def test_rate_and_shift_are_combined(spark: Any) -> None:
    """Where the rate allows it, each message keeps its time."""
    rate = 10
    # Each partition has ten messages at intervals of a minute, and then twenty at once.
    rows = due(archive(spark, [30] * PARTS, "least(place, 10) * 60"), rate=rate, shift=(START_MS // 1000 - OLD_S))
    times = [at_ms for at_ms, _, _ in rows]
    assert len(times) == 30 * PARTS
    before = [at_ms - START_MS - min(int(offset), 10) * 60_000 for at_ms, _, offset in rows]
    assert min(before) == 0, "no message is early"
    assert most_in_a_second(times) == rate
    burst = [at_ms for at_ms, _, offset in rows if int(offset) >= 10]
    assert burst[-1] - burst[0] == 1000 * (len(burst) - 1) // rate, "the burst is spread"
    assert max(late for late, (_, _, offset) in zip(before, rows, strict=True) if int(offset) < 10) == 600


def test_below_the_rate_nothing_waits(spark: Any) -> None:
    """Each Spark partition holds one day, so only one partition has messages at any time."""
    rows = due(archive(spark, [40, 40, 40], "part * 86400 + place * 10"), rate=0.2, shift=(START_MS // 1000 - OLD_S))
    late = [at_ms - START_MS - part * 86_400_000 - int(offset) * 10_000 for at_ms, part, offset in rows]
    assert set(late) == {0}
