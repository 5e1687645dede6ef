"""If the brokers have trimmed messages that are not archived, the job sql reports an error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sandq.errors import InvalidRequest
from sandq.spark import jobs
from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, values


@pytest.mark.parametrize("partition", [0, 1], ids=["the one that is archived", "one of which nothing is archived yet"])
def test_messages_trimmed_before_archiving_are_reported(
    spark: Any, node: Broker, tmp_path: Path, partition: int
) -> None:
    node.create_topic("t", partitions=2, delete_on_ack=False, retain="1h")
    fill(node, "t", range(10), partition=0)
    node.advance("1m")
    place = str(tmp_path / "archive")
    # Archive without the hold that keeps unarchived messages for a week.
    jobs.archive(spark, ["t"], place, hold="none", servers=[node.address])
    fill(node, "t", range(10, 20), partition=partition)
    node.advance("5h")
    fill(node, "t", range(20, 30), partition=partition)

    def ask(**options: Any) -> list[int]:
        query = "select value from messages"
        return values(jobs.sql(spark, query, ["t"], archive=place, servers=[node.address], **options))

    with pytest.raises(PySparkException, match=rf"partition {partition}: messages .* were trimmed before they were"):
        ask()
    assert ask(fail_on_data_loss=False) == [*range(10), *range(20, 30)]
    assert ask(since=node.now_ms() - 60_000) == [*range(20, 30)], "the trimmed messages were not requested"
    shutil.rmtree(tmp_path / "archive" / "_checkpoint")
    for wrong, says in ((place, "its checkpoint .* was lost"), (str(tmp_path / "nothing"), "there is no archive")):
        with pytest.raises(InvalidRequest, match=says):
            jobs.sql(spark, "select value from messages", ["t"], archive=wrong, servers=[node.address])
