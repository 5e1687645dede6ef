"""The disk of a leader fails. Producers do not notice it, because other nodes also have replicas of the topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.model.errors import SandqError, StorageFailed
from sandq.protocol.frames import Type
from sandq.storage.files import RealFiles
from sandq.storage.stores import LevelStores
from tests.integration.cluster.test_three_nodes import created
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.nodes.working import take, values
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import until_holds


class Disk:
    """State of a node. `fails`: empty, or the part that refuses writes."""

    def __init__(self, directory: Path) -> None:
        self.fails = ""
        self.files = FaultyFiles(RealFiles(directory), Plan(on_sync=self._sync))

    def _sync(self, name: str) -> None:
        if self.fails == "log":
            raise StorageFailed("the log fails", operation="sync", file=name, errno="EIO")

    def stores(self, *args: Any, **options: Any) -> LevelStores:
        """Return stores whose writes fail while the disk is to fail them."""
        disk = self

        class Stores(LevelStores):
            def write(self, changes: Sequence[Any]) -> None:
                if disk.fails == "stores":
                    raise StorageFailed("the stores fail", operation="write", file="stores", errno="EIO")
                super().write(changes)

        return Stores(*args, **options)


@pytest.mark.parametrize("what", ["log", "stores"])
async def test_a_producer_goes_on(tmp_path: Path, what: str) -> None:
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect() as client:
            await created(nodes, client)
        await nodes.stop(*NAMES)
        disks = {name: Disk(nodes.data_dir(name)) for name in NAMES}
        async with trio.open_nursery() as starting:
            for name, disk in disks.items():
                starting.start_soon(lambda n=name, d=disk: nodes.start(n, files=d.files, stores=d.stores))
        async with nodes.connect() as client, client.producer("t") as producer:
            before = [await producer.send(b"%d" % number) for number in range(100)]
            await before[0]
            leader = await nodes.until_led()
            disks[leader].fails = what
            after = [await producer.send(b"%d" % number) for number in range(100, 400)]
            for receipt in (*before, *after):
                await receipt
            await until_holds(lambda: nodes.running[leader].broker.node_log.failed is not None)
            await until_holds(lambda: nodes.leader() not in (None, leader))
            raw = await RawClient.connect(nodes.client_ports[leader])
            for kind in (Type.GROUP_LIST, Type.TOPIC_STATS):
                refused = await raw.call(kind, "t")
                assert refused[2] == "NOT_LEADER", refused
            await trio.aclose_forcefully(raw.stream)
            async with client.subscribe("t", group="g", credit=1000) as subscription:
                got = values(await take(subscription, 400, ack=False))
                assert sorted(got) == sorted(b"%d" % number for number in range(400))
            with pytest.raises(SandqError):
                nodes.host(leader).check_ready()
