"""The source works through Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import functions as F

from sandq.spark.jobs.session import home_in_environment, spark_home
from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, reading, values


def test_batch_reads_log_and_pending_views(spark: Any, node: Broker) -> None:
    node.create_topic("orders", partitions=3)
    fill(node, "orders", range(1000))
    fill(node, "orders", range(1000, 1500), delay="1h")
    node.advance("1m")
    rows = reading(spark.read, node, subscribe="orders", includeHeaders=True).load().collect()
    assert sorted(int(row.value) for row in rows) == [*range(1000)]
    assert {(pair.key, pair.value) for row in rows for pair in row.headers} >= {("t", b"x"), ("n", b"7")}
    assert {row.partition for row in rows} == {0, 1, 2}
    assert len({row.offset for row in rows}) == 1000 and all(row.offset == row.message_id for row in rows)
    assert values(reading(spark.read, node, subscribe="orders", view="pending").load()) == [*range(1000, 1500)]
    assert reading(spark.read, node, subscribe="orders", view="all", minPartitions=8).load().count() == 1500


def test_filters_and_columns(spark: Any, node: Broker) -> None:
    """Filtered rows are not read, and the other rows are the same as without a filter."""
    node.create_topic("orders", partitions=3)
    for first in range(0, 300, 100):
        fill(node, "orders", range(first, first + 100))
        node.advance("1m")
    options = {"subscribe": "orders", "columns": "key,value,partition,deliver_at"}
    plain = reading(spark.read, node, **options).load()
    assert plain.columns == ["key", "value", "partition", "deliver_at"]
    times = sorted({row.deliver_at for row in plain.select("deliver_at").collect()})
    middle = times[len(times) // 2]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = reading(spark.read, node, **options, pushFilters=True).load()
        found = [
            (where, values(frame.where(where).select("value")))
            for where in (
                F.col("partition") == 1,
                (F.col("deliver_at") >= F.lit(middle)) & (F.col("partition") != 2),
                (F.col("key") == F.lit(b"k3")) & (F.col("deliver_at") < F.lit(middle)),
                F.col("key").isin(bytearray(b"k1"), bytearray(b"k2")),
                F.col("deliver_at") == F.lit(middle),
            )
            for frame in (plain, pushed)
        ]
        for (where, without), (_, pushed_down) in zip(found[::2], found[1::2], strict=True):
            assert 0 < len(without) < 300 and without == pushed_down, where
        few = pushed.where(F.col("deliver_at") >= F.lit(middle)).rdd.getNumPartitions()
        assert pushed.where(F.col("partition") == 1).rdd.getNumPartitions() == 1 < few
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match=r"spark\.sql\.python.filterPushdown.enabled"):
        reading(spark.read, node, **options, pushFilters=True).load().collect()


def test_workers_load_pyspark_from_where_it_is_installed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers do not load pyspark from a zip archive, because each worker would compile it again."""

    def where(part: Any) -> Any:
        import pyspark

        yield pyspark.__file__

    (found,) = spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()
    assert found == pyspark.__file__ and Path(found).exists()
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with spark_home(is_local=True) as home, home_in_environment(home):
        assert home is not None and os.environ["SPARK_HOME"] == str(home)
        assert {path.name for path in home.iterdir()} >= {"bin", "jars"}
    assert not home.exists() and "SPARK_HOME" not in os.environ
    with spark_home(is_local=False) as home, home_in_environment(home):
        assert home is None and "SPARK_HOME" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    with spark_home(is_local=True) as home:
        assert home is None
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/another/python")  # this Python runs the planning of a source
    with spark_home(is_local=True) as home:
        assert home is None
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home(is_local=True) as home, home_in_environment(home):
        assert home is None and os.environ["SPARK_HOME"] == "/opt/spark"
