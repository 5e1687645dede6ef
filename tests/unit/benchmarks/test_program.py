"""Tests of the program that runs the rows: the list of rows, the selection, where they run, and the output."""

from __future__ import annotations

import cProfile
import json
import random
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import disk, machine
from benchmarks.__main__ import chosen, main, run
from benchmarks.driver import Load, LoadFailed
from benchmarks.process import Where
from benchmarks.produce import batch_of, frames_of, links
from benchmarks.profiles import write_texts
from benchmarks.report import markdown, write
from benchmarks.result import DUE, GROUPS, Goal, Latency, Measured, Result, Row, Setting
from benchmarks.rows import ALIASES, MEASURES
from sandq.model.batch import Batch, Column
from sandq.protocol.frames import FrameReader
from sandq.protocol.requests import Produce

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /tmp rw - tmpfs tmpfs rw
31 30 0:26 / /tmp/a\\040b rw shared:4 - xfs /dev/vdb rw
32 22 0:27 / /twice rw - ext4 /dev/vdc rw
33 22 0:28 / /twice rw - ramfs none rw
"""


def names_of(rows: list[Row]) -> list[str]:
    return [row.name for row in rows]


def ok(setting: Setting) -> Measured:
    return Measured(10, 5.0)


def broken(setting: Setting) -> Measured:
    raise TimeoutError("the node has not answered")


def test_every_row_is_in_a_group_and_has_its_own_name() -> None:
    assert {row.group for row in MEASURES.values()} == set(GROUPS)
    assert all(name == row.name for name, row in MEASURES.items())
    assert set(ALIASES.values()) <= set(MEASURES)
    assert not set(ALIASES) & set(MEASURES)


def test_produce_rows_cover_all_batch_sizes_and_modes() -> None:
    names = {
        *("produce_1000", "produce_100", "produce_10", "produce_1_pipe_16"),
        *("produce_1000_lock_16", "produce_100_lock_16", "produce_10_lock_16", "produce_lock_step"),
        *(f"produce_{size}_{mode}_1" for size in (1, 10, 100, 1000) for mode in ("lock", "pipe")),
    }
    assert names <= set(MEASURES)
    assert not {"produce_1000_pipe_16", "produce_1_lock_16"} & set(MEASURES)


def test_rows_are_chosen_by_name_and_by_group_in_the_order_of_the_table() -> None:
    assert names_of(chosen([], [])) == list(MEASURES)
    assert names_of(chosen(["both", "produce_100", "memory"], [])) == ["produce_100", "both", "pending_1m"]
    assert names_of(chosen(["both"], ["spark"])) == [
        *("both", "spark_read", "spark_write", "spark_stream", "spark_archive_cold", "spark_archive", "spark_schedule")
    ]


def test_a_row_that_fails_leaves_the_others_their_figures() -> None:
    rows = [Row("first", "produce", "", broken), Row("second", "produce", "", ok)]
    measured, failures = run(rows, Where(), True, 2)
    assert measured == {"first": [], "second": [Measured(10, 5.0)] * 2}
    assert failures == ["first failed: the node has not answered"] * 2


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/srv/data", "ext4"),
        ("/tmp/data", "tmpfs"),
        ("/tmp", "tmpfs"),
        ("/tmpfile", "ext4"),
        ("/tmp/a b/data", "xfs"),
        ("/twice", "ramfs"),
    ],
)
def test_filesystem_is_found_by_longest_mount(path: str, found: str) -> None:
    assert disk.filesystem_of(Path(path), MOUNTS) == found


def test_a_directory_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(disk, "_MOUNTS", mounts)
    mounts.write_text(f"22 1 254:0 / {tmp_path.resolve()} rw - tmpfs none rw\n")
    with pytest.raises(click.ClickException, match=r"on tmpfs, in memory.*--dir"):
        disk.check_disk(tmp_path)
    result = CliRunner().invoke(main, ["--dir", str(tmp_path), "--only", "both"])
    assert result.exit_code == 1
    assert str(tmp_path) in result.output
    mounts.write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n")
    disk.check_disk(tmp_path)


def test_each_partition_has_its_share_of_the_connections() -> None:
    assert links([1], 4, 1) == [(1, [0])] * 4
    assert links([1], 2, 5) == [(1, [0, 2, 4]), (1, [1, 3])]
    assert links([7, 8, 9], 3, 3) == [(7, [0]), (8, [1]), (9, [2])]


def test_requests_are_numbered_from_1_and_use_partitions_round_robin() -> None:
    frames = FrameReader().feed(b"".join(frames_of([batch_of(2)] * 4, 5, 6)))
    assert [frame[1] for frame in frames] == [1, 2, 3, 4]
    assert sorted(Produce.parse(frame).partition for frame in frames) == [5, 5, 6, 6]


def test_a_load_that_ends_says_why() -> None:
    with Load("produce", links=[], nonsense=1) as load, pytest.raises(LoadFailed, match="nonsense"):
        load.ready()


def test_profiles_become_texts_without_paths(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.runcall(Batch.parse, batch_of(3))
    profile.dump_stats(tmp_path / "row.MainThread")
    profile.dump_stats(tmp_path / "row_2.MainThread")
    write_texts(tmp_path, "row")
    write_texts(tmp_path, "row")  # strings are not profiles
    assert {path.name for path in tmp_path.iterdir()} == {"row.MainThread", "row.MainThread.txt", "row_2.MainThread"}
    text = (tmp_path / "row.MainThread.txt").read_text()
    assert "(parse)" in text
    assert "model/" not in text
    assert str(tmp_path) not in text


def result(name: str, measured: Measured, group: str = "produce", goal: Goal | None = None) -> Result:
    return Result.of(Row(name, group, f"what {name} is", ok, goal=goal), [measured])


def test_report_has_a_table_per_group_and_the_start_of_latency(tmp_path: Path) -> None:
    latency = Latency.of(DUE, [0.001, 0.002])
    late = Measured(2, 2.0, latency=latency, errors=1, details={"early": 1}, stolen=0.125)
    results = [
        result("one", Measured(1000, 2e6, 1.5, 0.25, fsyncs=40), goal=Goal(1e6, "msg/s")),
        result("late", late, "lateness"),
    ]
    text = markdown({"cores": 2}, results, ["bench-produce.png"])
    assert "- cores: 2" in text
    assert text.index("## Producing") < text.index("## Lateness")
    assert "| `one` | 2,000,000 msg/s | >= 1,000,000 msg/s | 2.00 | 1.50 | 0.25 |  |  |  |  | 40 | 25 |  |" in text
    assert "| 1 | 2 | 2 | after due |  |  | 12% | ERRORS 1; early 1 |" in text
    assert "- `late` (raw): what late is" in text
    assert text.endswith("![bench-produce](bench-produce.png)\n")


def test_charts_are_drawn_for_existing_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    details = {"MB over empty": 3.0, "of it anonymous": 2.0, "restart, serves s": 1.0}
    results = [
        result("produce_100", Measured(1, 5e5)),
        result("lateness_idle", Measured(1, 1.0, latency=Latency.of(DUE, [0.001])), "lateness"),
        result("pending_10m", Measured(10_000_000, 9.0, details=details), "pending"),
        result("size_1kb", Measured(1, 1e5, details={"MB/s": 100.0}), "shape"),
    ]
    write(tmp_path, {}, results)
    pictures = ["bench-lateness.png", "bench-pending.png", "bench-produce.png", "bench-sizes.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*pictures, "bench.json", "bench.md"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert len(json.loads((tmp_path / "bench.json").read_text())["results"]) == 4


def test_scheduled_batches_have_a_moment_for_each_message() -> None:
    times = Batch.parse(batch_of(50, random.Random(1), within_ms=1000)).int_column(Column.DELIVER_MS)
    assert times is not None
    moments = [moment for moment in times if moment is not None]
    assert len(set(moments)) > 40
    assert max(moments) - min(moments) < 1000


def test_stolen_share_is_measured_since_the_start() -> None:
    times = iter([(1000, 100), (3000, 600), (3000, 600)])
    result = machine.stolen(lambda: next(times))
    assert result() == 0.25
    assert machine.stolen(lambda: (5, 1))() == 0.0, "no time may pass"
    before, now = machine.cpu_ticks(), machine.cpu_ticks()
    assert 0 <= before[1] <= before[0] <= now[0]
