"""Tests of increments behind a backup: interrupted followers, trimmed logs on the nodes, and the files that remain."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sandq.backup import (
    BackupFollower,
    BackupKey,
    DamagedBackup,
    NoBackup,
    chain,
    create,
    create_backup,
    follow,
    increments,
    list_backups,
    point_in_time,
    verify_chain,
)
from sandq.backup import manifest as manifests
from sandq.backup.locations import Directory
from sandq.backup.manifest import Manifest
from sandq.backup.point_in_time import find_moment, made_backup
from sandq.backup.verify import Blocks
from sandq.model.errors import Conflict, Forbidden, InvalidRequest, StorageFailed, Unavailable
from sandq.model.features import KNOWN
from sandq.model.stored_rows import decode_chunk
from sandq.partition.base.digest import comparable
from tests.support.backups.fake_cluster import FakeCluster, FakePartition
from tests.support.backups.fake_location import BrokenPipe, FakeLocation, Killed
from tests.support.partition.bench import T
from tests.support.partition.restore_bench import rows_of


@pytest.fixture(autouse=True)
def transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fake cluster as the client."""
    for module in (create, follow):
        monkeypatch.setattr(module, "BackupTransfer", lambda client: client)


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.make("a", 2)
    made.make("b")
    made.put("a", "base")
    return made


@pytest.fixture
def location() -> FakeLocation:
    return FakeLocation()


async def backed_up(cluster: Any, location: Any, key: BackupKey | None = None, **options: Any) -> Manifest:
    return await create_backup(cluster, location, key=key, follow=True, **options)


def follower(cluster: Any, location: Any, manifest: Manifest, key: BackupKey | None = None) -> BackupFollower:
    return BackupFollower(cluster, location, manifest, key=key)


def now(cluster: FakeCluster) -> dict[tuple[str, int], Any]:
    """Return the rows that each partition has stored."""
    return {location: comparable(rows_of(one.bench)) for location, one in cluster.partitions.items()}


async def as_of(
    location: Any, manifest: Manifest, at_ms: int | None, tmp_path: Path, key: BackupKey | None = None
) -> tuple[dict[tuple[str, int], Any], tuple[str, ...]]:
    """Make a backup of a point in time. Return the rows of each partition, and the warnings."""
    moment = find_moment(location, manifest, key, None, at_ms)
    async with made_backup(location, manifest, key, moment, tmp_path, lambda progress: None) as (made_place, made):
        assert manifests.read(made_place, made.backup_id, key) == made
        found = {}
        for topic in made.topics:
            for part in topic.partitions:
                blocks, flat = Blocks(made_place, made, part, key), []
                while got := blocks.take(1):
                    flat += decode_chunk(got[0])
                blocks.close()
                found[topic.name, part.partition] = comparable(zip(flat[::2], flat[1::2], strict=True))
    assert os.listdir(tmp_path) == [], "nothing stays"
    return found, moment.warnings


async def test_every_point_in_time_can_be_restored(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    moments = {}
    for number in range(5):
        for value in "xyz":
            cluster.put("a", f"{value}{number}", number % 2)
            cluster.put("b", value)
            moments[T + cluster.at] = now(cluster)
        made = await going.step()
        assert made.number == number and made.entries == 6 and not made.gone and made.reach_ms == T + cluster.at
    for at_ms, expected in moments.items():
        found, warnings = await as_of(location, manifest, at_ms, tmp_path)
        assert found == expected and not warnings
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)
    verified = await verify_chain(location, manifest.backup_id, replay=True, work=tmp_path)
    assert verified.increments == 5 and verified.replayed == 3
    assert verified.spans == [(T + 1000, T + cluster.at)]
    assert cluster.partitions["b", 0].pins[-1] < cluster.partitions["b", 0].bench.index, (
        "the follower waits until the file exists"
    )
    for at_ms in (T - 1, T + cluster.at + 1):
        with pytest.raises(
            InvalidRequest, match=r"partition \d of topic '.' cannot be restored as of .* nearest times"
        ):
            find_moment(location, manifest, None, None, at_ms)


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_follower_killed_at_any_call_continues(is_encrypted: bool, tmp_path: Path) -> None:
    key = BackupKey(bytes(32)) if is_encrypted else None
    cluster, location = FakeCluster(), FakeLocation()
    cluster.make("a")
    manifest = await backed_up(cluster, location, key)
    dies_at, deaths, moments = 0, 0, {}
    while True:
        if dies_at % 4 == 0:
            cluster.put("a", "x")
        if dies_at == 4 and "new" not in cluster.topics:
            cluster.make("new")
        moments[T + cluster.at] = now(cluster)
        location.calls, location.dies_at = 0, dies_at
        try:
            await follower(cluster, location, manifest, key).step(always=True)
        except Killed:
            deaths += 1
            dies_at += 1
            continue
        break
    location.dies_at = None
    assert deaths > 20
    verified = await verify_chain(location, manifest.backup_id, key=key, replay=True, work=tmp_path)
    assert verified.increments >= 2, "some followers died after they had written an increment"
    for at_ms, expected in list(moments.items())[:: len(moments) // 6]:
        found, warnings = await as_of(location, manifest, at_ms, tmp_path, key)
        assert all(found[name] == expected[name] for name in found) and ("a", 0) in found and not warnings


async def test_log_gap_is_filled_with_new_rows_and_reported(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("a", "x")
    await going.step()
    before_ms, before = T + cluster.at, now(cluster)
    cluster.put("a", "lost")
    hole_ms = T + cluster.at
    cluster.put("a", "last of them")
    cluster.partitions["a", 0].cut()
    after_ms, after = T + cluster.at, now(cluster)
    made = await going.step()
    (gone,) = made.gone
    assert "partition 0 of topic a got new rows: its log begins later" in gone and made.rebased_bytes > 0
    cluster.put("a", "y")
    await going.step()
    assert await as_of(location, manifest, before_ms, tmp_path) == (before, ())
    assert await as_of(location, manifest, after_ms, tmp_path) == (after, ())
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)
    with pytest.raises(InvalidRequest, match="partition 0 of topic 'a' cannot be restored") as refused:
        find_moment(location, manifest, None, None, hole_ms)
    for at_ms in (before_ms, after_ms):
        assert chain.shown_time(at_ms) in refused.value.message
    assert find_moment(location, manifest, None, ["b"], hole_ms).topics[0].name == "b", "topic 'b' has no gap"
    verified = await verify_chain(location, manifest.backup_id)
    assert verified.spans == [(T + 1000, before_ms), (after_ms, T + cluster.at)]


async def test_follower_stops_at_a_different_history(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("a", "x")
    await going.step()
    there = cluster.partitions["a", 0]
    there.log[there.bench.index] = 9, there.log[there.bench.index][1]
    cluster.put("a", "y")
    (gone,) = (await going.step()).gone
    assert "another history" in gone
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)


async def test_entries_of_another_history_are_not_put_behind_new_rows(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    """A partition was reset by force to fewer entries. Other partitions continue, so the follower reads on."""
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    for value in "abcdef":
        cluster.put("a", value)
    cluster.put("a", "other", 1)
    await going.step()
    cluster.partitions["a", 0] = again = FakePartition(0, cluster.at)
    again.term += 1
    cluster.put("a", "x")
    (gone,) = (await going.step()).gone
    assert "another history" in gone
    for value in "stuvwxyz":
        cluster.put("a", value)
        cluster.put("a", value, 1)
    await going.step()
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)


async def test_a_clock_that_was_ahead_for_a_while_hides_nothing(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    """The wrong clock stamps entries. Entries that follow after its correction can be restored at their own times."""
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("a", "before")
    cluster.put("a", "of the other", 1)
    before_ms, before = T + cluster.at, now(cluster)
    await going.step()
    cluster.at += 7_200_000
    cluster.put("a", "ahead")
    assert (await going.step()).reach_ms == T + cluster.at
    cluster.at = before_ms - T + 10_000
    cluster.put("a", "right again")
    at_ms, expected = T + cluster.at, now(cluster)
    cluster.put("a", "later")
    assert (await going.step()).reach_ms == T + cluster.at, "the reach must not be in the future"
    assert await as_of(location, manifest, at_ms, tmp_path) == (expected, ())
    assert await as_of(location, manifest, before_ms, tmp_path) == (before, ())
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)


async def test_topics_come_and_go(cluster: FakeCluster, location: FakeLocation, tmp_path: Path) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("b", "old")
    await going.step()
    old_ms, old = T + cluster.at, now(cluster)
    cluster.at += 1000
    cluster.delete("b")
    deleted_ms = T + cluster.at
    cluster.at += 1000
    (left,) = (await going.step()).left
    assert "topic b is not followed any more" in left
    cluster.at += 1000
    cluster.make("b", 2)
    cluster.put("b", "new", 1)
    await going.step()
    assert (await as_of(location, manifest, old_ms, tmp_path))[0] == old
    found, warnings = await as_of(location, manifest, deleted_ms, tmp_path)
    assert set(found) == {("a", 0), ("a", 1)} and "topic b is left out: it was deleted" in warnings[0]
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)
    cluster.delete("b")
    cluster.at += 1000
    await going.step()
    with pytest.raises(NoBackup, match=r"no topic 'b' any more; it was deleted, and can be restored up to"):
        find_moment(location, manifest, None, ["b"], None)


async def test_a_moment_at_which_a_new_topic_was_not_read_yet_is_refused(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    """Without the error, the rows that were stored in the meantime would be missing silently."""
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("b", "x")
    await going.step()
    cluster.at += 1000
    cluster.make("new")
    before_ms = T + cluster.at - 1
    cluster.put("new", "one")
    hole_ms = T + cluster.at
    cluster.put("new", "two")
    read_ms, read = T + cluster.at, now(cluster)
    cluster.at += 1000
    await going.step()
    with pytest.raises(InvalidRequest, match="partition 0 of topic 'new' cannot be restored as of"):
        find_moment(location, manifest, None, None, hole_ms)
    assert find_moment(location, manifest, None, ["b"], hole_ms).topics[0].name == "b"
    assert (await as_of(location, manifest, read_ms, tmp_path))[0] == read, (
        "the new topic has rows although it was unknown at that time"
    )
    found, warnings = await as_of(location, manifest, before_ms, tmp_path)
    assert ("new", 0) not in found and not warnings
    (listed,) = await list_backups(location)
    assert [one for one in listed.spans if one[0] <= hole_ms <= one[1]] == []


async def test_partitions_that_are_added_take_nothing_of_the_times_before(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("b", "x")
    await going.step()
    before_ms, before = T + cluster.at, now(cluster)
    cluster.at += 1000
    cluster.partitions["b", 1] = FakePartition(1, cluster.at)
    cluster.topics["b"] = {**cluster.topics["b"], "partitions": 2}
    cluster.put("b", "one", 1)
    hole_ms = T + cluster.at
    cluster.put("b", "two", 1)
    read_ms, read = T + cluster.at, now(cluster)
    cluster.at += 1000
    await going.step()
    assert (await as_of(location, manifest, before_ms, tmp_path))[0] == before
    found, warnings = await as_of(location, manifest, hole_ms, tmp_path)
    assert ("b", 1) not in found and "partitions of topic b from 1 on are left out" in warnings[0]
    assert await as_of(location, manifest, read_ms, tmp_path) == (read, ())
    (listed,) = await list_backups(location)
    assert listed.spans == [(T + 1000, T + cluster.at)]


async def test_entries_of_recreated_topic_are_discarded(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name now finds a different topic, whose log may continue at the old end, in the same term."""

    def recreate_topic() -> None:
        cluster.delete("b")
        cluster.make("b")
        for value in "stuvwxyz":
            cluster.put("b", value)

    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    cluster.put("b", "old")
    await going.step()
    read_log, is_anew = cluster.read_log, []

    async def asked(topic: str, *args: Any) -> Any:
        if not is_anew:
            is_anew.append(True)
            recreate_topic()
        return await read_log(topic, *args)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "read_log", asked)
        with pytest.raises(Unavailable, match="topic b was deleted and recreated meanwhile"):
            await going.step()
    await going.step()
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)


async def test_topic_recreated_during_a_backup_is_omitted(
    cluster: FakeCluster, location: FakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = cluster.begin

    async def begun(topic: str, partition: int) -> Any:
        if (topic, partition) == ("a", 1):
            cluster.delete("a")
            cluster.make("a", 2)
        return await begin(topic, partition)

    monkeypatch.setattr(cluster, "begin", begun)
    manifest = await backed_up(cluster, location)
    assert [topic.name for topic in manifest.topics] == ["b"]
    assert "topic a is left out: it was deleted and recreated" in manifest.warnings[0]


async def test_a_partition_without_a_leader_holds_nothing_up(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    await going.step()
    reach_ms = going.reach_ms
    cluster.partitions["a", 1].is_away = True
    cluster.put("a", "x")
    cluster.at += 100_000
    made = await going.step()
    assert made.entries == 1 and "partition 1 of topic a: nobody leads it" in made.errors[0]
    assert made.reach_ms == reach_ms, "all rows up to then can be restored"
    (warning,) = find_moment(location, manifest, None, None, None).warnings
    assert "partition 1 of topic a is as of" in warning and "could not be read since" in warning
    cluster.partitions["a", 1].is_away = False
    assert (await going.step()).reach_ms == T + cluster.at


async def test_a_topic_that_must_not_be_read_holds_nothing_up(
    cluster: FakeCluster, location: FakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic can be visible through a different right."""
    manifest = await backed_up(cluster, location)
    read_log = cluster.read_log

    async def refused(topic: str, *args: Any) -> Any:
        if topic == "b":
            raise Forbidden("it needs `read` on topic b")
        return await read_log(topic, *args)

    monkeypatch.setattr(cluster, "read_log", refused)
    cluster.put("a", "x")
    made = await follower(cluster, location, manifest).step()
    assert made.entries == 1 and made.errors == ["partition 0 of topic b: it needs `read` on topic b"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), BrokenPipe("the bucket is gone")])
async def test_full_store_is_reported(cluster: FakeCluster, location: FakeLocation, error: Exception) -> None:
    """The store is full while the follower writes entries, rows of a partition, or a backup."""
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    for number in range(2):
        cluster.put("a", "x")
        if number:
            cluster.partitions["a", 0].cut()
        location.refuses = lambda name, number=number: error if number == name.count("/") // 4 else None
        with pytest.raises(StorageFailed, match=r"No space left|the bucket is gone"):
            await going.step()
        location.refuses = lambda name: None
        await going.step()
    location.refuses = lambda name: error
    with pytest.raises(StorageFailed, match=r"No space left|the bucket is gone"):
        await backed_up(cluster, location)
    location.refuses = lambda name: None
    await verify_chain(location, manifest.backup_id)


async def test_an_increment_without_news_is_rare(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    assert (await going.step()).number == 0
    assert (await going.step()).number is None
    place_files = len(location.data)
    assert (await going.step(always=True)).number == 1 and len(location.data) == place_files + 1


async def test_backups_of_others_are_not_followed(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    cluster.uuid = "other"
    with pytest.raises(NoBackup, match="is of cluster c"):
        await follower(cluster, location, manifest).step()
    location.remove(manifest.backup_id, "")
    with pytest.raises(NoBackup, match="not there"):
        await follower(cluster, location, manifest).step()


async def test_only_selected_topics_are_followed(cluster: FakeCluster, location: FakeLocation, tmp_path: Path) -> None:
    manifest = await backed_up(cluster, location, topics=["a"])
    cluster.put("b", "x")
    cluster.put("a", "x")
    made = await follower(cluster, location, manifest).step()
    assert made.entries == 1
    assert set((await as_of(location, manifest, None, tmp_path))[0]) == {("a", 0), ("a", 1)}


async def test_second_follower_is_reported(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    one, other = follower(cluster, location, manifest), follower(cluster, location, manifest)
    await one.step()
    await other.step(always=True)
    with pytest.raises(Conflict, match="another process follows"):
        await one.step()
    assert (await one.step(always=True)).number == 2


async def test_second_follower_of_a_store_without_locks_is_reported(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both followers write the same number, and one overwrites the file of the other."""
    manifest = await backed_up(cluster, location)
    one, other = follower(cluster, location, manifest), follower(cluster, location, manifest)
    await one.step()
    catalog = cluster.catalog

    async def meanwhile() -> Any:
        if cluster.catalog is not catalog:
            monkeypatch.setattr(cluster, "catalog", catalog)
            cluster.put("a", "x")
            await one.step()
        return await catalog()

    monkeypatch.setattr(cluster, "catalog", meanwhile)
    cluster.put("a", "y")
    await other.step(always=True)
    with pytest.raises(Conflict, match="another process follows"):
        await one.step(always=True)
    await other.step(always=True)
    verified = await verify_chain(location, manifest.backup_id, replay=True, work=tmp_path)
    assert verified.increments == 3


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_increment_without_its_end_is_made_again(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, is_restarted: bool
) -> None:
    """Some stores keep a partial file if the writer was stopped."""
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    for number in range(2):
        cluster.put("a", "x")
        if is_restarted:
            going = follower(cluster, location, manifest)
        await going.step()
        name = _name(manifest, number + 1)
        location.data[name] = location.data[_name(manifest, number)][: 10 * number]
    with pytest.raises(DamagedBackup, match="without this last file, everything before it can be restored"):
        find_moment(location, manifest, None, None, None)
    cluster.put("a", "y")
    if is_restarted:
        going = follower(cluster, location, manifest)
    assert (await going.step()).number == 2
    assert (await as_of(location, manifest, None, tmp_path))[0] == now(cluster)


async def test_follow_waits_for_a_store_with_delayed_listings(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    await going.step()
    hidden = location.data.pop(_name(manifest, 0))
    with pytest.raises(StorageFailed, match=r"of 1 increments of backup .* it lists 0"):
        await going.step()
    location.data[_name(manifest, 0)] = hidden
    assert (await going.step(always=True)).number == 1


async def test_following_a_deleted_backup_raises_no_backup(cluster: FakeCluster, tmp_path: Path) -> None:
    location = Directory(tmp_path)
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    location.remove(manifest.backup_id, manifests.MANIFEST)
    with pytest.raises(NoBackup):
        await going.step()
    assert os.listdir(tmp_path) == []


async def _chain_of(cluster: FakeCluster, location: FakeLocation, count: int = 4) -> Manifest:
    manifest = await backed_up(cluster, location)
    going = follower(cluster, location, manifest)
    for number in range(count):
        cluster.put("a", f"{number}")
        await going.step()
    return manifest


def _name(manifest: Manifest, number: int) -> str:
    return f"{manifest.backup_id}/{chain.name_of(number)}"


Damage = Callable[[dict[str, bytes], Callable[[int], str]], None]


def _swap(data: dict[str, bytes], name: Callable[[int], str]) -> None:
    data[name(1)], data[name(2)] = data[name(2)], data[name(1)]


def _flip(data: dict[str, bytes], name: Callable[[int], str]) -> None:
    found = data[name(1)]
    data[name(1)] = found[:-40] + bytes([found[-40] ^ 1]) + found[-39:]


def _truncate(data: dict[str, bytes], name: Callable[[int], str]) -> None:
    data[name(3)] = data[name(3)][:-7]


def _lose(data: dict[str, bytes], name: Callable[[int], str]) -> None:
    del data[name(1)]


@pytest.mark.parametrize(
    ("damage", "words", "number"),
    [(_swap, "is expected", 1), (_flip, "damaged", 1), (_truncate, "truncated", 3), (_lose, "missing", 1)],
    ids=["swapped", "flipped", "truncated", "lost"],
)
async def test_damage_is_reported_with_file_and_byte(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, damage: Damage, words: str, number: int
) -> None:
    manifest = await _chain_of(cluster, location)
    damage(location.data, partial(_name, manifest))
    with pytest.raises(DamagedBackup, match=words) as refused:
        await verify_chain(location, manifest.backup_id)
    assert refused.value.details["file"] == f"backups/{_name(manifest, number)}"
    assert type(refused.value.details["byte"]) is int
    with pytest.raises(DamagedBackup, match=words):
        await as_of(location, manifest, None, tmp_path)
    (listed,) = await list_backups(location)
    assert listed.manifest == manifest, "the backup itself is good"
    assert (listed.problem is not None) == (damage in (_truncate, _lose)), (
        "this damage is found without reading all files"
    )


async def test_an_increment_of_another_life_of_the_chain_is_refused(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path
) -> None:
    """The files of one backup were restored to an earlier state, and following resumed from there."""
    manifest = await _chain_of(cluster, location, 2)
    first = dict(location.data)
    cluster.put("a", "one")
    await follower(cluster, location, manifest).step()
    stolen = location.data[_name(manifest, 2)]
    location.data = first
    cluster.put("a", "two")
    await follower(cluster, location, manifest).step()
    cluster.put("a", "three")
    await follower(cluster, location, manifest).step()
    await verify_chain(location, manifest.backup_id)
    location.data[_name(manifest, 2)] = stolen
    with pytest.raises(DamagedBackup, match=r"missing|another increment"):
        await verify_chain(location, manifest.backup_id)
    with pytest.raises(DamagedBackup, match=r"missing|another increment"):
        await as_of(location, manifest, None, tmp_path)


async def test_a_foreign_increment_is_refused(cluster: FakeCluster, location: FakeLocation) -> None:
    one, other = await _chain_of(cluster, location), await _chain_of(cluster, location)
    location.data[_name(one, 2)] = location.data[_name(other, 2)]
    with pytest.raises(DamagedBackup, match=other.backup_id):
        await verify_chain(location, one.backup_id)


@pytest.mark.parametrize("rows", [[b"key"], [1, 2], {"a": 1}])
async def test_invalid_rows_are_reported(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Any
) -> None:
    """The checksums are right, because a faulty program wrote the files."""
    monkeypatch.setattr("tests.support.backups.fake_cluster.encode_chunk", lambda flat: msgpack.packb(rows))
    manifest = await backed_up(cluster, location)
    await follower(cluster, location, manifest).step()
    with pytest.raises(NoBackup, match="the rows of partition 0 of topic 'a'"):
        await as_of(location, manifest, None, tmp_path)


async def test_data_of_a_newer_version_is_refused(
    cluster: FakeCluster, location: FakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await _chain_of(cluster, location)
    monkeypatch.setattr(point_in_time, "KNOWN", KNOWN._replace(highest=KNOWN.highest - 1))
    with pytest.raises(NoBackup, match=f"feature level {KNOWN.highest}"):
        find_moment(location, manifest, None, None, None)


async def test_missing_node_package_raises_config_error(
    cluster: FakeCluster, location: FakeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandq.errors import ConfigError

    manifest = await _chain_of(cluster, location)
    monkeypatch.setitem(__import__("sys").modules, "sandq.backup.replay", None)
    monkeypatch.delattr("sandq.backup.replay", raising=False)
    with pytest.raises(ConfigError, match="pip install sandq,"):
        await as_of(location, manifest, None, tmp_path)


async def test_a_chain_without_increments_has_no_other_times(cluster: FakeCluster, location: FakeLocation) -> None:
    manifest = await backed_up(cluster, location)
    with pytest.raises(NoBackup, match="has no increments"):
        find_moment(location, manifest, None, None, T)
    (listed,) = await list_backups(location)
    assert listed.increments == 0 and listed.reach_ms is None


def test_windows_that_are_over_are_bounded() -> None:
    window = chain.Window(topic=1, partition=0, base=0, base_index=5, base_ms=10, index=9, term=2, to_ms=20)
    over = [dataclasses.replace(window, last=1, to_ms=at) for at in range(chain.ENDED_MOST + 3)]
    kept = chain.bounded([window, *over])
    assert len(kept) == chain.ENDED_MOST + 1 and window in kept and min(one.to_ms for one in kept if one.last) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [({"partitions": 1 << 50}, "topic a"), ({"partitions": 0}, "topic a"), ({}, "with the same name")],
)
async def test_topics_that_cannot_be_are_refused(
    cluster: FakeCluster, location: FakeLocation, change: dict[str, Any], words: str
) -> None:
    """Listing the backups would count the partitions of such a summary without end."""
    manifest = await _chain_of(cluster, location, 1)
    summary, _ = increments.read_summary(location, manifest.backup_id, 0, None)
    assert summary.topics is not None
    topic = dataclasses.replace(summary.topics[0], **change)
    forged = dataclasses.replace(summary, topics=(topic, summary.topics[0]))
    increments.IncrementWriter(location, manifest.backup_id, 0, None).end(forged)
    (listed,) = await list_backups(location)
    assert words in (listed.problem or "")
    with pytest.raises(DamagedBackup, match=words):
        find_moment(location, manifest, None, None, None)


@pytest.mark.parametrize("at_ms", [0, 1_800_000_000_123, (1 << 48) - 1])
def test_times_are_shown(at_ms: int) -> None:
    assert chain.shown_time(at_ms).endswith(("Z", "ms"))


def test_count_ignores_other_files() -> None:
    location = FakeLocation()
    location.data = {
        f"b/{chain.FOLDER}/{name}": b"" for name in ("00000000.sandq", "note.txt", "1.sandq", "00000001.sandq")
    }
    assert increments.count(location, "b") == 2
