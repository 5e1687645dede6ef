"""Each job processes a million messages of a real node, each of them once. For `make test-long`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandq.spark import jobs
from sandq.sync import connect
from tests.support.processes.node import NodeProcess

COUNT = 1_000_000
DAY_MS = 86_400_000


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path)
    node.start()
    yield node
    node.close()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_job(spark: Any, process: NodeProcess, tmp_path: Path) -> None:
    servers = [process.address]
    now_ms = time.time_ns() // 1_000_000
    table = {
        "id": [f"k{number % 1000}" for number in range(COUNT)],
        "body": [b"%d" % number for number in range(COUNT)],
        "at": pa.array(range(now_ms - COUNT, now_ms), pa.int64()),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet", row_group_size=100_000)
    with connect(process.address) as client:
        for topic in ("t", "again", "paced"):
            client.admin.create_topic(topic, partitions=2, delete_on_ack=False)
    mapping = {"key": "id", "value": "body", "deliver_at": "at"}
    reports: list[Any] = [jobs.schedule(spark, "t", [str(tmp_path / "rows.parquet")], mapping, servers=servers)]
    assert reports[0].sent == COUNT
    place = str(tmp_path / "archive")
    archived = 0
    while archived < COUNT:  # a run archives the messages up to its start; the rest closes a second or two later
        reports.append(jobs.archive(spark, ["t"], place, servers=servers))
        archived += reports[-1].messages
    assert archived == COUNT
    asked = "select count(*) as all, count(distinct cast(value as int)) as different, sum(int(archived)) as archived"
    began_s = time.monotonic()
    (row,) = jobs.sql(spark, f"{asked} from messages", ["t"], archive=place, servers=servers).collect()
    assert tuple(row) == (COUNT, COUNT, COUNT)
    print(f"sql: {time.monotonic() - began_s:.1f} s")
    reports.append(jobs.replay(spark, place, "again", shift="30d", servers=servers))
    start_ms = now_ms + DAY_MS
    reports.append(jobs.replay(spark, place, "paced", start=start_ms, rate=1000, servers=servers))
    assert [one.messages for one in reports[-2:]] == [COUNT, COUNT]
    assert reports[-1].last_ms == start_ms + COUNT - 1
    reports.append(jobs.forecast(["again", "paced"], ahead="40d", servers=servers))
    assert {one.topic: one.messages + one.later for one in reports[-1].topics} == {"again": COUNT, "paced": COUNT}
    reports.append(jobs.report(["t", "again", "paced"], days=40, servers=servers))
    for one in reports:
        print(str(one.record())[:300])
