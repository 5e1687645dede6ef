"""Tests of the loop behind a chain of backups: intervals, status file, and full backups between increments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest
import trio

from sandq.backup import (
    BackupFollower,
    BackupSchedule,
    ChainKeeper,
    Standing,
    StatusFile,
    chains,
    create,
    create_backup,
    create_increment,
    follow,
    last_of_cluster,
    list_backups,
    schedule,
    verify_chain,
)
from sandq.backup.follow import Increment
from sandq.model.errors import Conflict, InvalidRequest, NotFound, Unavailable
from tests.support.backups.fake_cluster import FakeCluster
from tests.support.backups.fake_location import FakeLocation
from tests.support.partition.bench import T


@pytest.fixture(autouse=True)
def transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fake cluster as the client. Run all steps in the caller's thread, because time is virtual."""
    for module in (create, follow, chains, schedule):
        monkeypatch.setattr(module, "BackupTransfer", lambda client: client)

    async def at_once(step: Callable[[], Any], **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        return step()

    monkeypatch.setattr(anyio.to_thread, "run_sync", at_once)


def now_ms() -> int:
    return T + int(trio.current_time() * 1000)


class Follower:
    """A fake follower whose steps have these `outcomes`, in this order."""

    manifest = SimpleNamespace(backup_id="b")
    reach_ms = None

    def __init__(self, *outcomes: Increment | Exception) -> None:
        self.outcomes = list(outcomes)
        self.times: list[float] = []

    async def step(self) -> Increment:
        self.times.append(round(trio.current_time(), 3))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def keeper(follower: Any, standing: Standing | None = None, **options: Any) -> ChainKeeper:
    return ChainKeeper(follower, 10, standing or Standing(), now_ms=now_ms, **options)


async def test_increments_come_at_their_interval_and_sooner_after_a_failure(autojump_clock: Any) -> None:
    reported: list[str] = []
    standing = Standing()
    good = Increment(backup_id="b", number=0, reach_ms=T, bytes=100, entries=3, gone=["a partition"], rebased_bytes=5)
    follower = Follower(good, Unavailable("nobody"), Unavailable("nobody"), good)
    await keeper(follower, standing, tell=lambda event, fields: reported.append(event)).run(2)
    assert follower.times == [0, 10, 15, 20]
    assert reported == ["increment made", "increment failed", "increment failed", "increment made"]
    assert (standing.increments, standing.increment_bytes, standing.gone) == (2, 200, 2)
    assert (standing.increment_failures, standing.increment_error, standing.reach_ms) == (0, None, T)


async def test_interval_shrinks_if_the_log_might_be_trimmed(autojump_clock: Any) -> None:
    follower = Follower(
        *[Increment(backup_id="b", number=0, reach_ms=T, fullest=fullest) for fullest in (0.25, 0.5, 1.0, 0.0)]
    )
    await keeper(follower).run(4)
    assert follower.times == [0, 10, 15, 17.5]


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another one")])
async def test_missing_or_foreign_chain_ends_the_follower(error: Exception) -> None:
    with pytest.raises(type(error)):
        await keeper(Follower(error)).run()


async def test_keeper_stops_between_two_increments(autojump_clock: Any) -> None:
    follower = Follower(*[Increment(backup_id="b", number=None, reach_ms=T)] * 9)
    going = keeper(follower)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(going.run)
        await trio.sleep(25)
        going.stop()
    assert trio.current_time() == 25 and follower.times == [0, 10, 20]
    with pytest.raises(InvalidRequest):
        ChainKeeper(follower, 0.5, Standing())  # type: ignore[arg-type]


async def test_status_file_reports_how_far_the_chain_is(tmp_path: Path, autojump_clock: Any) -> None:
    standing = Standing()
    for name in ("status.json", "status.prom"):
        follower = Follower(Increment(backup_id="b", number=0, reach_ms=T + 5, errors=["p"]))
        await keeper(follower, standing, status=StatusFile(tmp_path / name)).run(1)
    found = json.loads((tmp_path / "status.json").read_text())
    assert (found["reach_ms"], found["partitions_behind"], found["chain"]) == (T + 5, 1, "b")
    text = (tmp_path / "status.prom").read_text()
    assert "\nsandq_backup_reach_timestamp_seconds 1800000000.005\n" in text
    assert "\nsandq_backup_partitions_behind 1\n" in text and "sandq_backup_gone_pins 0" in text


async def test_missing_increments_are_reported(tmp_path: Path, autojump_clock: Any) -> None:
    """The destination of the follower is full from the start. Alerts read the values in its status file."""
    going = keeper(Follower(*[Unavailable("full")] * 9), status=StatusFile(tmp_path / "status.prom"))
    with trio.move_on_after(12):
        await going.run()
    text = (tmp_path / "status.prom").read_text()
    assert "\nsandq_backup_increment_failures 3\n" in text and "\nsandq_backup_reach_timestamp_seconds 0.0\n" in text


async def test_increment_continues_the_last_backup_of_its_cluster() -> None:
    cluster, location = FakeCluster(), FakeLocation()
    client: Any = cluster
    cluster.make("a")
    assert await last_of_cluster(client, location, None) is None
    first, made = await create_increment(client, location)
    assert made.number == 0
    cluster.put("a", "x")
    assert (await create_increment(client, location))[1].entries == 1
    cluster.uuid = "other"
    other, _ = await create_increment(client, location)
    assert other.backup_id != first.backup_id
    cluster.uuid = "u"
    assert (await create_increment(client, location))[0] == first


async def test_full_backups_and_increments_leave_no_hole(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, location, reported = FakeCluster(), FakeLocation(), []
    client: Any = cluster
    cluster.make("a")
    cluster.put("a", "x")
    make = schedule.create_backup

    async def slow(*args: Any, **options: Any) -> Any:
        """Take half a minute for a backup. Other work continues meanwhile."""
        await trio.sleep(15)
        found = await make(*args, **options)
        await trio.sleep(15)
        return found

    async def work() -> None:
        while True:
            await trio.sleep(5)
            cluster.put("a", "x")
            cluster.at = int(trio.current_time() * 1000)

    monkeypatch.setattr(schedule, "create_backup", slow)
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    going = BackupSchedule(
        client,
        location,
        120,
        3,
        increments_s=10,
        status=tmp_path / "status.prom",
        tell=lambda event, fields: reported.append(event),
        now_ms=now_ms,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await going.run(3)
        nursery.cancel_scope.cancel()
    first, second, third = await list_backups(location)
    assert reported.count("backup made") == 3 and reported.count("increment made") > 15
    for one, next_one in ((first, second), (second, third)):
        assert one.increments > 5 and next_one.manifest is not None
        ((_, stop),) = one.spans
        assert stop >= max(part.time_ms for part in next_one.manifest.parts), (
            "the increments of a backup must reach up to the next backup"
        )
        await verify_chain(location, one.backup_id, replay=True, work=tmp_path)
    assert "sandq_backup_increment_failures 0" in (tmp_path / "status.prom").read_text()


async def test_last_increment_of_a_backup_is_retried(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last increment no gap is left before the next backup."""
    cluster, location = FakeCluster(), FakeLocation()
    client: Any = cluster
    cluster.make("a")
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    first = await create_backup(client, location, follow=True)
    going = BackupSchedule(client, location, 60, 3, increments_s=10, now_ms=now_ms)
    make, catalog, failing = schedule.create_backup, cluster.catalog, []

    async def made(*args: Any, **options: Any) -> Any:
        cluster.put("a", "x")
        found = await make(*args, **options)
        failing.extend([1, 1])
        return found

    async def refused() -> Any:
        if failing:
            failing.pop()
            raise Unavailable("for a moment")
        return await catalog()

    monkeypatch.setattr(schedule, "create_backup", made)
    monkeypatch.setattr(cluster, "catalog", refused)
    await going.run(1)
    one, other = await list_backups(location)
    assert one.backup_id == first.backup_id and other.manifest is not None and not failing
    assert one.spans[-1][1] >= max(part.time_ms for part in other.manifest.parts)


async def test_logs_are_kept_while_a_partition_takes_long(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes drop a follower that is silent for five minutes. A first backup and a second read of a partition can take
    longer."""
    cluster, location = FakeCluster(), FakeLocation()
    client: Any = cluster
    cluster.make("a")
    cluster.make("z")
    read, slow = cluster.read, 400

    async def reading(topic: str, *args: Any) -> Any:
        await trio.sleep(slow if topic == "z" else 0)
        return await read(topic, *args)

    monkeypatch.setattr(cluster, "read", reading)
    manifest = await create_backup(client, location, follow=True)
    a = cluster.partitions["a", 0]
    assert len(a.pins) > slow // 60 and len(set(a.pins)) == 1
    a.pins.clear()
    cluster.put("a", "x")
    durable = a.bench.index - 1
    cluster.put("z", "x")
    cluster.partitions["z", 0].cut()
    made = await BackupFollower(client, location, manifest).step()
    assert len(made.gone) == 1 and made.entries == 1
    assert len(a.pins) > slow // 60 and set(a.pins) == {durable}, "the pin must stay until the increment is durable"


async def test_logs_are_kept_between_increments_that_are_far_apart(autojump_clock: Any) -> None:
    """Nodes forget a follower after five silent minutes. If a node runs out of space, the next increment is made
    early."""
    cluster, location = FakeCluster(), FakeLocation()
    client: Any = cluster
    cluster.make("a")
    manifest = await create_backup(client, location, follow=True)
    a = cluster.partitions["a", 0]
    a.used = 0.2
    cluster.put("a", "x")
    going = ChainKeeper(BackupFollower(client, location, manifest), 1800, Standing(), now_ms=now_ms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(going.run, 2)
        await trio.sleep(1)
        index = a.bench.index
        a.pins.clear()
        cluster.put("a", "y")
        await trio.sleep(1200)
        assert len(a.pins) == 20 and set(a.pins) == {index}, "the pin must stay until the next increment is made"
        a.used = 0.3
    assert 1200 < trio.current_time() < 1300


async def test_schedules_of_other_topics_share_a_destination(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, location = FakeCluster(), FakeLocation()
    client: Any = cluster
    cluster.make("a")
    cluster.make("b")
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    for topics in (None, ["a"]):
        await BackupSchedule(client, location, 3600, 1, topics=topics, now_ms=now_ms).run(1)
        await trio.sleep(60)
    assert trio.current_time() == 120, "the second schedule must not wait for the first"
    await BackupSchedule(client, location, 3600, 1, topics=["a"], now_ms=now_ms).run(1)
    found = [one.manifest.only for one in await list_backups(location) if one.manifest is not None]
    assert found == [None, ("a",)] and trio.current_time() == 3660, "each schedule keeps its last backup"
    last = await last_of_cluster(client, location, None)
    assert last is not None and last.only is None


async def test_next_backup_is_followed_while_the_previous_is_deleted(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule keeps one backup. The previous backup is deleted while it is still followed."""
    cluster, location, reported = FakeCluster(), FakeLocation(), []
    client: Any = cluster
    cluster.make("a")
    delete = schedule.delete_backup

    async def slow(*args: Any) -> None:
        await delete(*args)
        await trio.sleep(25)

    def tell(event: str, fields: dict[str, object]) -> None:
        reported.append((event, fields.get("backup")))

    monkeypatch.setattr(schedule, "delete_backup", slow)
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    going = BackupSchedule(client, location, 120, 1, increments_s=10, tell=tell, now_ms=now_ms)
    await going.run(3)
    made = [backup for event, backup in reported if event == "backup made"]
    followed = {backup for event, backup in reported if event == "increment made"}
    assert set(made[:2]) <= followed and "backup is followed no more" not in dict(reported)
    assert going.standing.increment_failures == 0


async def test_follower_that_runs_once_does_not_end_a_schedule(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, location, reported = FakeCluster(), FakeLocation(), []
    client: Any = cluster
    cluster.make("a")
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    manifest = await create_backup(client, location, follow=True)
    going = BackupSchedule(
        client, location, 60, 3, increments_s=10, tell=lambda event, fields: reported.append(event), now_ms=now_ms
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(going.run, 1)
        await trio.sleep(15)
        await BackupFollower(client, location, manifest).step(always=True)
        cluster.put("a", "x")
    assert reported[:3] == ["increment made", "increment failed", "increment made"] and reported[-1] == "backup made"
    assert going.standing.increment_failures == 0
    await verify_chain(location, manifest.backup_id)


async def test_a_status_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    reported: list[str] = []
    status = StatusFile(tmp_path / "no such folder" / "status.json")
    follower = Follower(Increment(backup_id="b", number=0, reach_ms=T))
    await keeper(follower, status=status, tell=lambda event, fields: reported.append(event)).run(1)
    assert reported == ["increment made", "status file not written"]


async def test_a_chain_that_is_deleted_meanwhile_ends_no_schedule(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, location, reported = FakeCluster(), FakeLocation(), []
    client: Any = cluster
    cluster.make("a")
    monkeypatch.setattr(create.time, "time_ns", lambda: now_ms() * 1_000_000)
    await create_backup(client, location, follow=True)
    going = BackupSchedule(
        client, location, 60, 3, increments_s=10, tell=lambda event, fields: reported.append(event), now_ms=now_ms
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(going.run, 1)
        await trio.sleep(25)
        location.data.clear()
    assert reported == ["increment made", "backup is followed no more", "backup made"]
    assert trio.current_time() == 60 and going.standing.increment_error is not None
    for wrong in (0.5, 7200):
        with pytest.raises(InvalidRequest, match="more often"):
            BackupSchedule(client, location, 3600, 3, increments_s=wrong)
