"""The archive has each message once after several runs. `sandq_broker.advance` moves the clock from day to day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sandq.testing import Broker

from archive_topic import archive, archived, per_tenant

FIRST, SECOND = date(2030, 1, 1), date(2030, 1, 2)


def send(broker: Broker, orders: range, delay: str) -> None:
    with broker.client() as client, client.producer("orders") as producer:
        for order in orders:
            tenant = ("acme", "shop")[order % 2]
            producer.send(json={"order": order, "cents": 100}, tenant=tenant, delay=delay)


def until_started(run: Callable[[], None]) -> None:
    """Run again if the source did not start within the 10 s that Spark waits, as on a busy machine."""
    for _ in range(4):
        try:
            return run()
        except StreamingQueryException as error:
            if "Timed out while waiting for the Python worker" not in str(error):
                raise
    run()


def test_runs_add_new_messages_once(spark: SparkSession, sandq_broker: Broker, tmp_path: Path) -> None:
    sandq_broker.create_topic("orders", kind="fair", partitions=2)
    path = str(tmp_path / "archive")

    def run() -> list[tuple[object, ...]]:
        until_started(lambda: archive(spark, "orders", path, sandq_broker.address))
        return [tuple(row) for row in per_tenant(archived(spark, path)).collect()]

    send(sandq_broker, range(60), "1h")
    send(sandq_broker, range(60, 100), "30h")
    sandq_broker.advance("2h")
    first_day = [(FIRST, "acme", 30, 3000, 3600), (FIRST, "shop", 30, 3000, 3600)]
    assert run() == first_day, "messages that are not due are not archived"
    files = sorted(Path(path).glob("**/*"))
    assert run() == first_day
    assert sorted(Path(path).glob("**/*")) == files, "a run without new messages writes nothing"
    sandq_broker.advance("30h")
    second_day = [(SECOND, "acme", 20, 2000, 108000), (SECOND, "shop", 20, 2000, 108000)]
    assert run() == first_day + second_day
    assert sorted(row.order for row in archived(spark, path).select("order").collect()) == [*range(100)]
    assert {found.name for found in Path(path).glob("date=*")} == {"date=2030-01-01", "date=2030-01-02"}
