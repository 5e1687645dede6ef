"""Three nodes are lost with all their disks; three new nodes restore the data from a backup."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import trio

import sandq
from sandq.backup import BackupKey, create_backup, open_location, restore_backup, verify_backup
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.nodes.working import take, values

SETTINGS: dict[str, Any] = {"partitions": 3, "replicas": 3, "max_attempts": 2, "backoff": {"kind": "none"}}


async def _fill(api: sandq.Client) -> None:
    """Create topics of several kinds, and fill them with messages, keys, a schedule and dead letters."""
    await api.admin.create_topic("jobs", dead_letter_topic=None, **SETTINGS)
    await api.admin.create_topic("mail", kind="fair", partitions=2, replicas=3)
    await api.admin.create_topic("config", kind="compacted", partitions=2, replicas=3)
    await api.produce_many("jobs", [{"value": b"later %d" % n, "key": b"%d" % n, "delay": "3h"} for n in range(50)])
    await api.produce("jobs", b"unique", unique_key=b"one", delay="4h")
    for n in range(6):
        await api.produce("mail", b"%d" % n, tenant=f"tenant{n % 3}", priority=n)
        await api.kv("config").put(f"key{n}", b"%d" % n)
    await api.kv("config").delete("key0")
    await api.schedules("jobs").create("hourly", b"tick", every="1h")
    await api.produce_many("jobs", [{"value": b"due %d" % n, "partition": n % 3} for n in range(9)])
    async with api.subscribe("jobs", group="workers", credit=20) as subscription:
        for message in await take(subscription, 4, ack=False):
            await message.ack()
        (bad,) = await take(subscription, 1, ack=False)
        await bad.nack(error="never works")
        while True:
            (message,) = await take(subscription, 1, ack=False)
            if message.value == bad.value:
                await message.nack(error="never works")
                break
            await message.ack()
    await api.produce_many("jobs", [{"value": b"left %d" % n, "partition": n % 3} for n in range(3)])
    await api.admin.put_role("producers", ["produce:jobs"])


async def _all_of(api: sandq.Client) -> dict[str, Any]:
    """Return all stored data, except messages that may be trimmed at any time because all groups have acked them."""
    found: dict[str, Any] = {}
    for topic in ("jobs", "mail"):
        rows = [one async for one in api.messages(topic).list() if one.state not in ("acked", "dead")]
        found[topic] = sorted((one.id, one.value or b"", one.deliver_at_ms, one.key or b"") for one in rows)
        groups = await api.admin.groups(topic)
        found[f"{topic} groups"] = [(row["partition"], row["group"], row["dead"], row["cursor"]) for row in groups]
    found["dead"] = [(one.id, one.value, one.error) async for one in api.dead("jobs", "workers").list()]
    found["config"] = sorted([(entry.key, entry.value, entry.version) async for entry in api.kv("config").scan()])
    found["schedules"] = [one.name async for one in api.schedules("jobs").list()]
    for topic in ("jobs", "mail", "config"):
        record = await api.admin.topic(topic)
        found[f"{topic} is"] = (record.kind, record.replicas, len(record.partitions), record.settings)
    found["roles"] = await api.admin.roles()
    return found


async def test_a_cluster_that_was_lost_comes_back(tmp_path: Path, nursery: trio.Nursery) -> None:
    location, key = open_location(str(tmp_path / "backups")), BackupKey(bytes(range(32)))
    nodes = ThreeNodes(tmp_path, nursery)
    await nodes.start()
    async with nodes.connect() as api:
        await _fill(api)
        before = await _all_of(api)
        manifest = await create_backup(api, location, identities=True, key=key)
        await api.produce("jobs", b"after the backup", delay="3h")
    await nodes.stop(*NAMES)
    for name in NAMES:
        shutil.rmtree(nodes.data_dir(name))

    await verify_backup(location, manifest.backup_id, key=key)
    others = ThreeNodes(tmp_path / "others", nursery)
    await others.start()
    async with others.connect() as api:
        assert await api.admin.list_topics() == []
        restored = await restore_backup(api, location, manifest.backup_id, identities=True, key=key)
        assert restored.paused_groups == {"jobs": ["workers"]} and not restored.warnings
        assert await _all_of(api) == before
        taken = await api.messages("jobs").list().__anext__()
        assert taken.value != b"after the backup"
        async with api.subscribe("jobs", group="workers", credit=10) as subscription:
            await api.admin.resume_group("jobs", "workers")
            left = {b"left 0", b"left 1", b"left 2"}
            await api.produce("jobs", b"last", partition=0, delay="1ms")
            found = values(await take(subscription, 4))
            assert {*found} == {*left, b"last"}, "no delayed message is delivered early, and no acked message again"
        receipt = await api.produce("jobs", b"again", unique_key=b"other", delay="1h")
        assert receipt not in {row[0] for row in before["jobs"]}
    # The state is the same on every node, and after a restart.
    await others.stop(*NAMES)
    await others.start()
    async with others.connect() as api:
        assert [row[1:] for row in (await _all_of(api))["config"]] == [row[1:] for row in before["config"]]
        assert len([one async for one in api.messages("jobs").list()]) >= 51
    await others.stop(*NAMES)


async def test_a_leader_that_changes_does_not_stop_a_backup_nor_a_restore(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    from sandq.client.backups import BackupTransfer

    nodes = ThreeNodes(tmp_path, nursery)
    await nodes.start()
    location = open_location(str(tmp_path / "backups"))
    async with nodes.connect() as api:
        await api.admin.create_topic("t", replicas=3)
        await api.produce_many("t", [{"value": b"x" * 1000, "delay": "1h"} for _ in range(500)])
        read, changes = BackupTransfer.read, []

        async def moving(self: Any, topic: str, *args: Any) -> Any:
            if not changes:
                changes.append(await nodes.until_led("t"))
                await nodes.hand_over(*[name for name in NAMES if name != changes[0]])
            return await read(self, topic, *args)

        BackupTransfer.read = moving  # type: ignore[method-assign]
        try:
            manifest = await create_backup(api, location)
        finally:
            BackupTransfer.read = read  # type: ignore[method-assign]
        put = BackupTransfer.put_rows

        async def moved(self: Any, topic: str, *args: Any) -> Any:
            result = await put(self, topic, *args)
            leader = await nodes.until_led("r-t")
            await nodes.hand_over(*[name for name in NAMES if name != leader], topic="r-t")
            return await put(self, topic, *args) if result else result

        BackupTransfer.put_rows = moved  # type: ignore[method-assign]
        try:
            await restore_backup(api, location, manifest.backup_id, prefix="r-")
        finally:
            BackupTransfer.put_rows = put  # type: ignore[method-assign]
        rows = await api.admin.stats("r-t")
        assert [row["messages"] for row in rows] == [500]
    await nodes.stop(*NAMES)
