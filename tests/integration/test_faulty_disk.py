"""Disks that are full, fail, or damage data: a node reports it, and never acknowledges data that it cannot keep."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from sandq.model.errors import Corruption, DiskFull, SandqError, TimedOut
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.storage.files import RealFiles
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import RawClient, values_of
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import PATIENCE_S


def faulty(directory: Path, plan: Plan) -> FaultyFiles:
    (directory / "data").mkdir(exist_ok=True)
    return FaultyFiles(RealFiles(directory / "data"), plan)


@contextmanager
def refuses_to_start(kind: type[SandqError]) -> Iterator[list[str]]:
    """Return the messages of the errors that end a start."""
    found: list[str] = []
    try:
        yield found
    except kind as error:
        found.append(error.message)
    except BaseExceptionGroup as group:
        found += [leaf.message for leaf in leaves(group) if isinstance(leaf, kind)]
    assert found, f"the node must end with {kind.__name__}"


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


async def fill(client: RawClient, batches: int) -> None:
    await client.create()
    for number in range(batches):
        assert (await client.produce(b"%d" % number * 100))[0] == 0


async def expect_all(client: RawClient, batches: int) -> None:
    await client.subscribe(credit=10_000)
    got: list[bytes | None] = []
    with trio.fail_after(PATIENCE_S):
        while len(got) < batches:
            got += values_of(await client.push())
    assert sorted(got, key=str) == sorted((b"%d" % number * 100 for number in range(batches)), key=str)


async def test_failing_sync_stops_writes_and_is_reported(tmp_path: Path, dial: Dial) -> None:
    plan = Plan()
    async with run_node(small_config(tmp_path), files=faulty(tmp_path, plan)) as node:
        client = await dial(node)
        await fill(client, 3)
        plan.fail_sync_at = plan.syncs + 1
        taken = 0
        answer = await client.produce(b"last" * 50_000)
        for _ in range(10):
            if answer[0] != 0:
                break
            taken += 1
            answer = await client.produce(b"last" * 50_000)
        assert answer[2] == "STORAGE_FAILED"
        plan.fail_sync_at = None
        assert (await client.produce(b"refused"))[2] == "STORAGE_FAILED", "a failed sync is never retried"
        assert (await client.call(Type.METADATA, ["t"]))[0] == 0, "reads go on"
        assert (await client.call(Type.GROUP_LIST, "t"))[0] == 0
        assert (await client.call(Type.CLUSTER_INFO))[2]["storage_failed"]
        assert (await client.call(Type.TOPIC_CREATE, "u", "timer", 1, 1, {}))[2] == "STORAGE_FAILED"
    async with run_node(small_config(tmp_path)) as node:
        client = await dial(node)
        await client.subscribe(credit=100)
        got: list[bytes | None] = []
        await client.produce(b"behind it all")
        with trio.fail_after(PATIENCE_S):
            while b"behind it all" not in got:
                got += values_of(await client.push())
        got.remove(b"behind it all")
        last = [value for value in got if value == b"last" * 50_000]
        assert got[:3] == [b"0" * 100, b"1" * 100, b"2" * 100]
        assert taken <= len(last) <= taken + 1, "refused messages may be stored, accepted ones must be"
        assert len(got) == 3 + len(last)


async def test_a_full_disk_stops_nothing_for_good(tmp_path: Path, dial: Dial) -> None:
    """Requests that cannot be stored fail, and the full disk is reported. Once there is space, everything continues."""
    plan = Plan()
    config = small_config(tmp_path, STORAGE__RESERVE_BYTES="0")
    async with run_node(config, files=faulty(tmp_path, plan)) as node:
        client = await dial(node)
        await fill(client, 3)
        plan.full = True
        taken, refused = 0, set()
        while "UNAVAILABLE" not in refused:  # the current segment is already allocated, the next one is not
            answer = await client.produce(b"last" * 50_000)
            taken += answer[0] == 0
            refused |= {answer[2]} if answer[0] != 0 else set()
        assert refused <= {"TIMED_OUT", "UNAVAILABLE", "DISK_FULL"}
        assert "full" in (await client.call(Type.CLUSTER_INFO))[2]["stalled"]
        assert (await client.call(Type.GROUP_LIST, "t"))[2] in ("NOT_LEADER", "UNAVAILABLE"), (
            "the node must not acknowledge anything"
        )
        plan.full = False
        answer = await client.produce(b"behind it all")
        while answer[0] != 0:
            assert answer[2] in ("UNAVAILABLE", "DISK_FULL")
            answer = await client.produce(b"behind it all")
        assert (await client.call(Type.CLUSTER_INFO))[2]["stalled"] is None
        await client.subscribe(credit=100)
        got: list[bytes | None] = []
        with trio.fail_after(PATIENCE_S):
            while b"behind it all" not in got:
                got += values_of(await client.push())
        last = [value for value in got if value == b"last" * 50_000]
        assert got[:3] == [b"0" * 100, b"1" * 100, b"2" * 100]
        assert taken <= len(last) <= taken + 1, "messages without a reply may be stored, accepted ones must be"


async def test_nearly_full_disk_accepts_requests_that_free_space(tmp_path: Path, dial: Dial) -> None:
    plan = Plan()
    config = small_config(tmp_path, STORAGE__RESERVE_BYTES="64MiB")
    async with run_node(config, files=faulty(tmp_path, plan)) as node:
        client = await dial(node)
        await fill(client, 3)
        await client.subscribe(credit=100)
        held = await client.push()
        plan.budget_bytes = 32 << 20
        answer = await client.produce(b"new")
        while answer[0] == 0:
            answer = await client.produce(b"new")
        assert answer[2:5] == ["DISK_FULL", answer[3], True] and "storage.reserve_bytes" in answer[3]
        assert (await client.call(Type.CLUSTER_INFO))[2]["no_room"] == answer[3]
        assert (await client.ack(held))[0] == 0
        plan.budget_bytes = None
        while answer[0] != 0:
            answer = await client.produce(b"new")


async def test_schedules_wait_while_the_disk_is_full(tmp_path: Path) -> None:
    """Occurrences are planned once there is space again. None is missing or sent twice."""
    plan = Plan()
    config = small_config(tmp_path, STORAGE__RESERVE_BYTES="64MiB")
    async with (
        run_node(config, files=faulty(tmp_path, plan)) as node,
        connected(node) as client,
        connected(node, timeout="3s") as hasty,
    ):
        await client.admin.create_topic("t")
        schedules = client.schedules("t")
        await schedules.create("s", b"", every="1s", misfire="all")
        async with client.subscribe("t", group="g") as subscription:
            came = [message.headers["sandq-occurrence"] for message in await take(subscription, 2)]
            plan.budget_bytes = 32 << 20
            with pytest.raises(DiskFull, match=r"storage\.reserve_bytes"):
                while True:
                    with suppress(TimedOut):
                        await hasty.schedules("t").trigger("s")
            with pytest.raises(DiskFull):
                while True:  # if the write succeeded, the next attempt would find the occurrence
                    with suppress(TimedOut):
                        await hasty.schedules("t").create("another", b"", every="1h")
            assert [schedule.name async for schedule in schedules.list()] == ["s"]
            plan.budget_bytes = None
            while len(came) < 6:
                for message in await take(subscription, 1):
                    if "sandq-triggered" not in message.headers:
                        came.append(message.headers["sandq-occurrence"])
    assert came == [came[0] + 1000 * number for number in range(6)]


async def test_a_full_disk_at_the_start_is_named(tmp_path: Path) -> None:
    with refuses_to_start(SandqError) as messages:
        async with run_node(small_config(tmp_path), files=faulty(tmp_path, Plan(full=True))):
            pass
    assert "No space left" in messages[0]


async def stop_without_a_seal(tmp_path: Path, dial: Dial, batches: int) -> Path:
    """Write data and end as in a power loss, without seal and checkpoint. Return the current WAL segment."""
    plan = Plan()
    async with run_node(small_config(tmp_path), files=faulty(tmp_path, plan)) as node:
        await fill(await dial(node), batches)
        plan.fail_writes = True  # the stop must write nothing
    return min((tmp_path / "data" / "wal").iterdir())


def last_byte(segment: Path) -> int:
    return len(segment.read_bytes().rstrip(b"\0")) - 1


async def test_a_torn_tail_is_cut(tmp_path: Path, dial: Dial) -> None:
    segment = await stop_without_a_seal(tmp_path, dial, 5)
    end = last_byte(segment)
    with segment.open("r+b") as file:
        # A commit batch that was interrupted by the power loss: it looks like a record but is incomplete.
        file.seek((end + 8) // 8 * 8)
        file.write(b"SQWR" + bytes(range(1, 60)))
    async with run_node(small_config(tmp_path)) as node:
        await expect_all(await dial(node), 5)


async def test_flipped_bit_in_the_middle_is_refused_with_its_position(tmp_path: Path, dial: Dial) -> None:
    segment = await stop_without_a_seal(tmp_path, dial, 50)
    raw = bytearray(segment.read_bytes())
    raw[last_byte(segment) // 2] ^= 4
    segment.write_bytes(raw)
    with refuses_to_start(Corruption) as messages:
        async with run_node(small_config(tmp_path)):
            pass
    assert segment.name in messages[0]
    assert any(word.strip(":,.").isdigit() for word in messages[0].split()), messages[0]


async def test_a_damaged_leveldb_file_is_refused_by_name(tmp_path: Path, dial: Dial) -> None:
    async with run_node(small_config(tmp_path)) as node:
        await fill(await dial(node), 50)
    table = max((tmp_path / "data" / "stores.level").glob("*.ldb"), key=lambda path: path.stat().st_size)
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 3] ^= 4
    table.write_bytes(raw)
    with refuses_to_start(Corruption) as messages:
        async with run_node(small_config(tmp_path)) as node:
            client = await dial(node)
            await client.subscribe(credit=100)
            await client.push()
    assert "stores.level" in messages[0]


async def test_a_directory_in_use(node: Serving, tmp_path: Path) -> None:
    with refuses_to_start(SandqError) as messages:
        async with run_node(small_config(tmp_path)):
            pass
    assert "data" in messages[0]


async def test_a_directory_of_another_node(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)):
        pass
    with refuses_to_start(SandqError) as messages:
        async with run_node(small_config(tmp_path, NODE__ID="node2")):
            pass
    assert "'node1'" in messages[0] and "'node2'" in messages[0]


@pytest.mark.parametrize("vanished", ["stores", "wal", "stores.level"])
async def test_missing_data_prevents_start(tmp_path: Path, dial: Dial, vanished: str) -> None:
    async with run_node(small_config(tmp_path)) as node:
        await fill(await dial(node), 5)
    path = tmp_path / "data" / vanished
    path.rename(tmp_path / "elsewhere")
    with refuses_to_start(Corruption) as messages:
        async with run_node(small_config(tmp_path)):
            pass
    assert vanished in messages[0]
    if path.is_dir():
        shutil.rmtree(path)
    (tmp_path / "elsewhere").rename(path)
    async with run_node(small_config(tmp_path)) as node:
        await expect_all(await dial(node), 5)
