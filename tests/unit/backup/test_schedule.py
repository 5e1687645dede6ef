"""Tests of backups at intervals: the time of the next backup, the deleted backups, and the logged events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.backup import BackupSchedule, list_backups, open_location, schedule
from sandq.backup import manifest as manifests
from sandq.backup.listing import Listed, outlived
from sandq.backup.locations import Directory
from sandq.backup.manifest import FULL, Manifest
from sandq.backup.work import Pace
from sandq.model.errors import InvalidRequest, Unavailable

HOUR_MS = 3_600_000


def made(location: Any, ms: int, cluster_uuid: str = "u") -> Manifest:
    """Store an empty backup that began at `ms`, and return its manifest."""
    manifest = Manifest(
        backup_id=manifests.new_id(ms),
        kind=FULL,
        cluster="c",
        cluster_uuid=cluster_uuid,
        version="0",
        feature_level=16,
        begun_ms=ms,
        ended_ms=ms + 5,
        topics=(),
    )
    manifests.write(location, manifest, None)
    return manifest


class Bed:
    """A schedule whose clock the test advances. Its backups take no time."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, keep: int = 2, **options: Any) -> None:
        self.now_ms = 1_800_000_000_000
        self.location = open_location(str(path / "backups"))
        self.reported: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(schedule, "create_backup", self._create)
        monkeypatch.setattr(BackupSchedule, "_cluster", self._cluster)
        self.schedule = BackupSchedule(
            None,  # type: ignore[arg-type]
            self.location,
            3600,
            keep,
            tell=lambda event, fields: self.reported.append(event),
            now_ms=lambda: self.now_ms,
            **options,
        )

    async def _cluster(self) -> str | None:
        return "u"

    async def _create(self, client: Any, location: Any, **options: Any) -> Manifest:
        if self.error is not None:
            with location.create(f"{manifests.new_id(self.now_ms)}/data/t/0/00000.sandq") as stream:
                stream.write(b"x")
            raise self.error
        return made(location, self.now_ms)


async def test_next_backup_is_due_one_interval_after_the_last_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Bed(tmp_path, monkeypatch)
    last = made(bed.location, bed.now_ms - HOUR_MS // 2)
    await bed.schedule._read_existing()
    assert bed.schedule.standing.next_ms == last.begun_ms + HOUR_MS
    assert bed.schedule.standing.last_backup == last.backup_id
    bed.now_ms = last.begun_ms + HOUR_MS
    await bed.schedule.run(times=1)
    assert bed.reported == ["backup made"] and bed.schedule.standing.backups == 2


async def test_latest_backups_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path, monkeypatch)
    for _ in range(4):
        assert await bed.schedule.once()
        bed.now_ms += HOUR_MS
    there = await list_backups(bed.location)
    assert len(there) == 2 and bed.reported.count("backup deleted") == 2
    assert there[-1].backup_id == bed.schedule.standing.last_backup


async def test_backups_of_other_clusters_neither_count_nor_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path, monkeypatch, keep=1)
    others = [made(bed.location, bed.now_ms - hours * HOUR_MS, "other") for hours in (3, 2, 0)]
    bed.now_ms += 1
    await bed.schedule._read_existing()
    standing = bed.schedule.standing
    assert (standing.backups, standing.last_backup, standing.next_ms) == (0, None, bed.now_ms)
    for _ in range(3):
        assert await bed.schedule.once()
        bed.now_ms += HOUR_MS
    there = {one.backup_id for one in await list_backups(bed.location)}
    assert there == {one.backup_id for one in others} | {standing.last_backup} and standing.backups == 1


async def test_a_clock_that_was_ahead_stops_no_backups_and_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Bed(tmp_path, monkeypatch, keep=2)
    good = made(bed.location, bed.now_ms - HOUR_MS // 2)
    wrong = [made(bed.location, bed.now_ms + years * 9000 * HOUR_MS) for years in (1, 2, 3)]
    await bed.schedule._read_existing()
    assert bed.schedule.standing.next_ms == good.begun_ms + HOUR_MS
    assert await bed.schedule.once()
    there = [one.backup_id for one in await list_backups(bed.location)]
    assert there == [good.backup_id, bed.schedule.standing.last_backup], wrong


async def test_failed_backup_is_reported_and_deletes_no_good_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status.json"
    bed = Bed(tmp_path, monkeypatch, keep=1, status=status)
    assert await bed.schedule.once()
    good = bed.schedule.standing.last_backup
    bed.now_ms += HOUR_MS
    bed.error = Unavailable("no leader")
    assert not await bed.schedule.once() and not await bed.schedule.once()
    standing = bed.schedule.standing
    assert (standing.failures, standing.error, standing.last_backup) == (2, "no leader", good)
    assert standing.next_ms == bed.now_ms + 300_000
    assert [one.backup_id for one in await list_backups(bed.location)] == [good], (
        "the rest of the interrupted deletion is removed"
    )
    await bed.schedule._write_status()
    assert json.loads(status.read_text())["failures"] == 2


async def test_unfinished_backup_is_deleted_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path, monkeypatch)
    for hours in (25, 1):
        with bed.location.create(f"{manifests.new_id(bed.now_ms - hours * HOUR_MS)}/data/t/0/00000.sandq") as stream:
            stream.write(b"x")
    assert await bed.schedule.once()
    assert len([one for one in await list_backups(bed.location) if one.is_unfinished]) == 1


async def test_status_file_has_prometheus_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "sandq.prom"
    bed = Bed(tmp_path, monkeypatch, status=status)
    assert await bed.schedule.once()
    await bed.schedule._write_status()
    assert "\nsandq_backup_last_success_timestamp_seconds 1800000000.005\n" in status.read_text()


def test_unreadable_backup_is_never_deleted() -> None:
    bad = [Listed(str(number), None, "damaged") for number in range(5)]
    last = Manifest(
        backup_id="6",
        kind=FULL,
        cluster="c",
        cluster_uuid="u",
        version="0",
        feature_level=16,
        begun_ms=0,
        ended_ms=5,
        topics=(),
    )
    assert outlived(bad, 1, last) == []


def test_intervals_and_counts_have_bounds(tmp_path: Path) -> None:
    location = Directory(tmp_path)
    for every_s, keep in ((0.5, 1), (60, 0)):
        with pytest.raises(InvalidRequest):
            BackupSchedule(None, location, every_s, keep)  # type: ignore[arg-type]


async def test_a_rate_is_kept_over_all_partitions(autojump_clock: None) -> None:
    pace, began_s = Pace(100), trio.current_time()
    for _ in range(4):
        await pace.take(50)
    assert trio.current_time() - began_s == pytest.approx(1.5)
    await Pace(None).take(1 << 40)
    assert trio.current_time() - began_s == pytest.approx(1.5)
    with pytest.raises(InvalidRequest):
        Pace(0)
