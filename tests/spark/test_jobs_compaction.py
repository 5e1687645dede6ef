"""The compaction of an archive does not disturb readers or the job archive, even if it is cut off at any point."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from tests.support.paths import ROOT
from tests.support.spark.session_helpers import fill, values
from tests.support.waiting import wait_until

EACH = 20


@pytest.fixture
def frequent(spark: Any) -> Iterator[None]:
    """Let Spark write a list of all files with every second micro-batch."""
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "2")
    yield
    spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


@pytest.fixture
def a_day_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that moves the clock of compactions ahead by a bit more than a day."""

    def call() -> None:
        later_ms = compaction.now_ms() + 86_500_000
        monkeypatch.setattr(compaction, "now_ms", lambda: later_ms)

    return call


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("topic=*/*/*.parquet"))


class CutOff(Exception):
    """Simulates the end of the process."""


def made(place: Path, each: int = 2, width: int = 0) -> None:
    """Make an archive of five micro-batches with `each` rows each.

    It has the files of a stream with which Spark lists all files at every second micro-batch (`frequent`)."""
    fields = [field for field in schema(Extra(headers=True, raw=True, rank=True)) if field.name != "topic"]
    day, log = place / "topic=t" / "date=2030-01-01", place / "_spark_metadata"
    day.mkdir(parents=True)
    log.mkdir()
    lines = []
    for number in range(5):
        rows = [
            {"value": b"%d" % (each * number + row) + b" " * width, "partition": 0, "offset": f"{row:05}"}
            for row in range(each)
        ]
        file = day / f"part-{number}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), file)
        told = {"path": file.as_uri(), "size": file.stat().st_size, "isDir": False, "modificationTime": 5}
        lines.append(json.dumps(told | {"blockReplication": 1, "blockSize": 1 << 25, "action": "add"}))
        whole = number % 2 == 1
        listed = lines if whole else lines[-1:]
        (log / f"{number}{'.compact' * whole}").write_text("\n".join(["v1", *listed]))


def test_a_run_that_is_cut_off_has_changed_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_day_later: Callable[[], None]
) -> None:
    """Cut the run off before each of its changes of the archive."""
    place = tmp_path / "an [old] {archive}, 50%41"
    made(place)
    reader = archived(spark, str(place)).select("value")
    for method, times in (("status", 1), ("put", 3), ("move", 1)):
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
    synced = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
        done = jobs.compact_archive(spark, str(place))
    assert (done.before, done.after, done.deleted) == (5, 2, 0)
    new = json.loads((place / "_spark_metadata" / "3.compact").read_text().splitlines()[1])["path"].rpartition("/")[2]
    (compacted,) = place.glob(f"topic=t/*/{new}")
    listed = (place / "_spark_metadata" / "3.compact").stat().st_ino
    # A deleted file may have had the same inode number before, so take the last sync of that number.
    of_list = max(at for at, number in enumerate(synced) if number == listed)
    assert synced.index(compacted.stat().st_ino) < of_list, "rows are on the disk before they count"
    rows = archived(spark, str(place))
    assert values(rows) == values(reader) == [*range(10)], "a reader with the former list sees all rows"
    assert [tuple(row) for row in rows.select("topic", "date").distinct().collect()] == [("t", date(2030, 1, 1))]
    # A later run deletes the remaining files of all runs.
    a_day_later()
    done = jobs.compact_archive(spark, str(place))
    assert (done.before, done.after) == (2, 2) and done.deleted == 4 + 3, "the old files, and three that were moved"
    assert len(files(place)) == 2 and not [*(place / "_compaction").glob("[0-9]*")]
    assert values(archived(spark, str(place))) == [*range(10)]


def test_archive_on_another_file_system_is_compacted(spark: Any, tmp_path: Path) -> None:
    """The job accesses other file systems only through Hadoop."""
    made(tmp_path / "archive")
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.compaction.link./all", tmp_path.as_uri())
    for one in (tmp_path / "archive" / "_spark_metadata").iterdir():
        one.write_text(one.read_text().replace(tmp_path.as_uri(), "viewfs://compaction/all"))
    place = "viewfs://compaction/all/archive"
    done = jobs.compact_archive(spark, place)
    assert (done.before, done.after) == (5, 2)
    assert values(archived(spark, place)) == [*range(10)]


def test_invalid_archives_are_not_compacted(spark: Any, tmp_path: Path) -> None:
    place, log = tmp_path / "archive", tmp_path / "archive" / "_spark_metadata"
    made(place)
    with pytest.raises(InvalidRequest, match="keep: at least 10m"):
        jobs.compact_archive(spark, str(place), keep="9m")
    # The list in a copy of an archive names the files of the original. A compaction would delete them a day later.
    shutil.copytree(place, tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="names files outside of it"):
        jobs.compact_archive(spark, str(tmp_path / "copy"))
    # A list of files is lost. A compaction would lose the files in it.
    (log / "4").rename(log / "5")
    with pytest.raises(InvalidRequest, match="_spark_metadata/4: this list of files is missing"):
        jobs.compact_archive(spark, str(place))
    (log / "5").rename(log / "4")
    # A file was written by another version.
    file = next(place.glob("topic=t/*/part-1.parquet"))
    table = parquet.read_table(file)
    parquet.write_table(table.append_column("colour", pa.nulls(2, pa.string())), file)
    with pytest.raises(SandqError, match="columns that this version does not know: colour"):
        jobs.compact_archive(spark, str(place))
    # A file is damaged, and the session is configured to skip damaged files.
    file.write_bytes(b"PAR1" + b"x" * 100 + b"PAR1")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(SandqError, match="compact"):
            jobs.compact_archive(spark, str(place))
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    parquet.write_table(table, file)
    assert values(archived(spark, str(place))) == [*range(10)]


def test_a_run_that_takes_too_long(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_day_later: Callable[[], None]
) -> None:
    """A later run may delete the files of this run, because no list names them. So this run must fail."""
    place = tmp_path / "archive"
    made(place)
    merged = compaction._Run._merged

    def slow(self: Any, *args: Any) -> Any:
        found = merged(self, *args)
        with monkeypatch.context() as patch:
            patch.setattr(compaction._Run, "_replace", lambda *_: None)
            a_day_later()
            assert jobs.compact_archive(spark, str(place)).deleted == 1
        return found

    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="it took too long"):
        patch.setattr(compaction._Run, "_merged", slow)
        jobs.compact_archive(spark, str(place))
    assert values(archived(spark, str(place))) == [*range(10)]


def test_a_replay_that_failed_comes_first(spark: Any, node: Broker, tmp_path: Path) -> None:
    place, servers = tmp_path / "archive", [node.address]
    made(place)
    node.create_topic("keys", kind="compacted")
    node.create_topic("again")

    def replay(topic: str) -> int:
        jobs.replay(spark, str(place), topic, servers=servers)
        with node.client() as client:
            return len(list(client.messages(topic).list()))

    with pytest.raises(InvalidRequest, match="there is no file to read"):
        jobs.replay(spark, str(tmp_path / "none"), "again", servers=servers)
    with pytest.raises(InvalidRequest, match="key"):
        replay("keys")
    assert replay("again") == 10
    with pytest.raises(InvalidRequest, match=r"the replay replay-\w+ of these files has not ended"):
        jobs.compact_archive(spark, str(place))
    (note,) = (place / "_replays").glob("[!.]*")
    note.unlink()
    # A file that no list names is ignored. It remains from a run that was cut off, and may be deleted at any time.
    stray = place / "topic=t" / "date=2030-01-01" / "part-stray.parquet"
    shutil.copy(stray.with_name("part-0.parquet"), stray)
    assert replay("again") == 10
    assert jobs.compact_archive(spark, str(place)).after == 2


@pytest.mark.long
def test_a_replay_that_is_killed(spark: Any, node: Broker, tmp_path: Path) -> None:
    """A replay is killed in the middle, with all its processes.

    The next replay finishes it. Until then, the archive is not compacted."""
    place, each = tmp_path / "archive", 8000
    made(place, each, width=1000)
    node.create_topic("t")
    command = [sys.executable, "-m", "sandctl", "--server", node.address, "pipeline", "replay", str(place), "t"]
    with node.client() as client:

        def stored() -> int:
            return sum(int(row["messages"]) for row in client.admin.stats("t"))

        with subprocess.Popen(
            [*command, "--master", "local[1]"], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
        ) as job:
            try:
                wait_until(lambda: stored() or job.poll() is not None)
            finally:
                os.killpg(job.pid, signal.SIGKILL)
        assert 0 < stored() < 5 * each, "the kill must happen in the middle"
    with pytest.raises(InvalidRequest, match="has not ended"):
        jobs.compact_archive(spark, str(place))
    jobs.replay(spark, str(place), "t", servers=[node.address])
    assert sorted(int(message.value or b"") for message in node.messages("t")) == [*range(5 * each)]
    assert jobs.compact_archive(spark, str(place)).after == 2
    assert values(archived(spark, str(place))) == [*range(5 * each)]


@pytest.mark.long
def test_an_archive_that_is_written_to_meanwhile(
    spark: Any,
    frequent: None,
    node: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    a_day_later: Callable[[], None],
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

    # If the archive is written to between the last check of a compaction and its change, the compaction has no effect.
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
    assert values(reader) == [*range(count - 2 * EACH)], "a reader with the former list sees its rows"
    # A later run deletes the remaining files of all runs, and the archive continues.
    a_day_later()
    done = jobs.compact_archive(spark, str(place))
    assert done.before == done.after == len(files(place)) and done.deleted >= 4
    archive_more()
    rows = archived(spark, str(place))
    assert values(rows) == [*range(count)]
    assert rows.select("topic", "date").distinct().count() == 1
    assert not [*(place / "_compaction").glob("[0-9]*")], "no file of a run is left"
    assert json.loads(listed.splitlines()[-1])["action"] == "add"
