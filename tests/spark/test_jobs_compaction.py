"""The compaction of an archive: readers notice nothing, and neither does the job archive, wherever it is cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sandq.errors import InvalidRequest, SandqError, Unavailable
from sandq.spark import jobs
from sandq.spark.jobs import compaction
from sandq.spark.jobs.archive import archived
from sandq.spark.jobs.directories import SparkDirectories
from sandq.spark.source.columns import schema
from sandq.spark.source.options import Extra
from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, values

EACH = 20


@pytest.fixture
def frequent(spark: Any) -> Iterator[None]:
    """Spark writes a list of all files with every second micro-batch."""
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "2")
    yield
    spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("topic=*/*/*.parquet"))


class CutOff(Exception):
    """Instead of the end of the process."""


def made(place: Path) -> None:
    """An archive of five micro-batches with two rows each, as Spark leaves one that lists all files at every second."""
    fields = [field for field in schema(Extra(headers=True, raw=True, rank=True)) if field.name != "topic"]
    day, log = place / "topic=t" / "date=2030-01-01", place / "_spark_metadata"
    day.mkdir(parents=True)
    log.mkdir()
    lines = []
    for number in range(5):
        rows = [{"value": b"%d" % (2 * number + row), "partition": 0, "offset": f"{row}"} for row in range(2)]
        file = day / f"part-{number}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), file)
        told = {"path": file.as_uri(), "size": file.stat().st_size, "isDir": False, "modificationTime": 5}
        lines.append(json.dumps(told | {"blockReplication": 1, "blockSize": 1 << 25, "action": "add"}))
        whole = number % 2 == 1
        listed = lines if whole else lines[-1:]
        (log / f"{number}{'.compact' * whole}").write_text("\n".join(["v1", *listed]))


def test_a_run_that_is_cut_off_has_changed_nothing(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each thing that it does to the archive."""
    place = tmp_path / "an archive"
    made(place)
    reader = archived(spark, str(place)).select("value")
    for method, times in (("put", 2), ("move", 1), ("status", 1)):
        real = getattr(SparkDirectories, method)
        for before in range(times):
            steps = iter(range(before))

            def cut(self: Any, *args: Any, real: Any = real, steps: Iterator[int] = steps) -> Any:
                if next(steps, None) is None:
                    raise CutOff
                return real(self, *args)

            with monkeypatch.context() as patch, pytest.raises(SandqError, match="CutOff"):
                patch.setattr(SparkDirectories, method, cut)
                jobs.compact_archive(spark, str(place))
    assert values(archived(spark, str(place))) == [*range(10)]
    done = jobs.compact_archive(spark, str(place))
    assert (done.before, done.after, done.deleted) == (5, 2, 0)
    rows = archived(spark, str(place))
    assert values(rows) == values(reader) == [*range(10)], "also by the list of before"
    assert [tuple(row) for row in rows.select("topic", "date").distinct().collect()] == [("t", date(2030, 1, 1))]
    # What is left of all runs goes with a later one.
    done = jobs.compact_archive(spark, str(place), keep=0)
    assert (done.before, done.after) == (2, 2) and done.deleted == 4 + 2, "the old ones, and two that were moved"
    assert len(files(place)) == 2 and not [*(place / "_compaction").glob("[0-9]*")]
    assert values(archived(spark, str(place))) == [*range(10)]


@pytest.mark.long
def test_an_archive_that_is_written_to_meanwhile(
    spark: Any, frequent: None, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create_topic("t")
    place = tmp_path / "archive"
    count = 0

    def archive_more() -> None:
        nonlocal count
        fill(node, "t", range(count, count + EACH))
        count += EACH
        node.advance("1m")
        jobs.archive(spark, ["t"], str(place), servers=[node.address])

    with pytest.raises(InvalidRequest, match="there is no archive"):
        jobs.compact_archive(spark, str(place))
    for _ in range(4):
        archive_more()
    assert jobs.archive(spark, ["t"], str(place), servers=[node.address]).batches == 0
    before, reader = files(place), archived(spark, str(place)).select("value")
    assert len(before) == 4

    # Written to between its last look and its step: what it does counts for nothing.
    merged = compaction._Run._merged

    def while_archiving(self: Any, *args: Any) -> Any:
        found = merged(self, *args)
        archive_more()
        archive_more()
        return found

    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="written to meanwhile"):
        patch.setattr(compaction._Run, "_merged", while_archiving)
        jobs.compact_archive(spark, str(place))
    assert values(archived(spark, str(place))) == [*range(count)]

    done = jobs.compact_archive(spark, str(place))
    listed = max((place / "_spark_metadata").glob("*.compact"), key=lambda path: int(path.stem)).read_text()
    assert done.after < done.before == 6 and done.deleted == 0
    assert sum("compacted-" in line for line in listed.splitlines()) == 1
    assert values(archived(spark, str(place))) == [*range(count)]
    assert values(reader) == [*range(count - 2 * EACH)], "by the list of before"
    # What is left of all runs goes with a later one, and the archive goes on.
    done = jobs.compact_archive(spark, str(place), keep=0)
    assert done.before == done.after == len(files(place)) and done.deleted >= 4
    archive_more()
    rows = archived(spark, str(place))
    assert values(rows) == [*range(count)]
    assert rows.select("topic", "date").distinct().count() == 1
    assert not [*(place / "_compaction").glob("[0-9]*")], "nothing is left of any run"
    assert json.loads(listed.splitlines()[-1])["action"] == "add"
