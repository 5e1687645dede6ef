"""Increments of three nodes are followed while leaders change and logs are trimmed. Then the cluster is restored as of
two times."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.backup import BackupFollower, create_backup, open_location, restore_backup, verify_chain
from sandq.broker.replication import node_log
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_holds


def cut_logs(nodes: ThreeNodes) -> None:
    """Flush the stores as a checkpoint does."""
    for serving in nodes.running.values():
        log = serving.broker.node_log
        log.truncate({number: host.status.applied_index for number, host in log.hosts.items()})


async def state_of(api: sandq.Client, topic: str) -> set[tuple[str, int]]:
    return {
        (one.id, one.deliver_at_ms) async for one in api.messages(topic).list() if one.state not in ("acked", "dead")
    }


async def test_each_moment_of_a_cluster_comes_back(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    nodes = ThreeNodes(tmp_path, nursery)
    await nodes.start()
    location: Any = open_location(str(tmp_path / "backups"))
    async with nodes.connect() as api:
        await api.admin.create_topic("t", partitions=1, replicas=3)
        await api.admin.create_topic("k", kind="compacted", replicas=3)
        await (await api.produce_many("t", [{"value": b"base %d" % n, "delay": "5h"} for n in range(20)]))
        manifest = await create_backup(api, location, follow=True)
        follower = BackupFollower(api, location, manifest)
        await (await api.produce_many("t", [{"value": b"%d" % n, "delay": "5h"} for n in range(50)]))
        await api.kv("k").put("a", b"1")
        async with api.subscribe("t", group="g", credit=2) as subscription:
            await (await api.produce_many("t", [{"value": b"acked"}, {"value": b"not yet"}]))
            assert len(await take(subscription, 1)) == 1
            (held,) = await take(subscription, 1, ack=False)
            one = await state_of(api, "t")
            cut_logs(nodes)
            made = await follower.step()
            assert made.number == 0 and not made.gone and not made.errors and made.entries > 3
            assert made.reach_ms is not None
            await trio.sleep(0.01)  # the next entry must have a later time in ms
            await held.ack()
        leader = await nodes.until_led("t")
        group = nodes.host(leader).number
        others = [name for name in NAMES if name != leader]
        hosts = [nodes.running[name].broker.node_log.hosts[group] for name in others]
        await until_holds(lambda: all(len(host.reader_pins) for host in hosts))
        await nodes.hand_over(*others)
        await (await api.produce_many("t", [{"value": b"later %d" % n, "delay": "6h"} for n in range(30)]))
        await api.kv("k").put("a", b"2")
        cut_logs(nodes)
        made = await follower.step()
        assert made.number == 1 and not made.gone, "the new leader must have kept the log for the reader"
        two = await state_of(api, "t")
        # A gap in the log is reported and does not stop the command.
        for serving in nodes.running.values():
            for host in serving.broker.node_log.hosts.values():
                host.reader_pins.lose()
        for number in range(4):
            await api.produce("t", b"more %d" % number, delay="7h")
        cut_logs(nodes)
        last = await follower.step()
        assert len(last.gone) == 1 and "partition 0 of topic t got new rows" in last.gone[0]
        three = await state_of(api, "t")
        reaches = [follower.manifest.backup_id, made.reach_ms]
    await nodes.stop(*NAMES)
    for name in NAMES:
        shutil.rmtree(nodes.data_dir(name))

    assert (await verify_chain(location, manifest.backup_id, replay=True)).increments == 3
    new = ThreeNodes(tmp_path / "new", nursery)
    await new.start()
    async with new.connect() as api:
        restored = await restore_backup(api, location, reaches[0])
        assert await state_of(api, "t") == three and not restored.warnings
        assert (await api.kv("k").get("a")).value == b"2"
        await restore_backup(api, location, reaches[0], prefix="two-", at_ms=reaches[1])
        assert await state_of(api, "two-t") == two
        async with api.subscribe("t", group="g", credit=10) as subscription:
            await api.admin.resume_group("t", "g")
            await api.produce("t", b"new")
            assert values(await take(subscription, 1)) == [b"new"], (
                "acked messages stay acked, and no message is delivered early"
            )
        assert one != two
    await new.stop(*NAMES)
