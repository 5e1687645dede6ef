"""Data stored by releases: each archive of `tests/support/release_data.py` opens, and its content is complete."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import trio

import sandq
from sandq.backup import create_backup, open_location, restore_backup
from sandq.backup.locations import Location
from sandq.model.features import KNOWN
from tests.support.processes.node import NodeProcess
from tests.support.release_data import ARCHIVES
from tests.support.waiting import PATIENCE_S

ACKED, PRODUCED_BEFORE, PRODUCED_AFTER, DELAYED = 30, 100, 20, 50
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))


async def taken(client: sandq.Client, topic: str, count: int) -> list[sandq.LeasedMessage]:
    """Receive exactly this number of messages of the group."""
    leases = client.leases(topic, "work")
    found: list[sandq.LeasedMessage] = []
    while len(found) < count:
        found += await leases.take(1000, wait="30s", lease="1h")
    assert await leases.take(1000) == []
    return found


async def check(address: str) -> None:
    """Check that the data of an earlier release is complete and behaves as before."""
    async with sandq.connect(address, timeout=PATIENCE_S) as client:
        left = await taken(client, "jobs", PRODUCED_BEFORE - ACKED + PRODUCED_AFTER)
        values = {message.value.decode() for message in left}
        assert len(values) == len(left) and {f"second {n}" for n in range(PRODUCED_AFTER)} <= values
        assert sorted({message.attempt for message in left}) == [1, 2], "leased and nacked messages must be redelivered"
        delayed = [message async for message in client.messages("jobs").list(state="delayed", values=True)]
        assert len(delayed) == DELAYED, "one of 50 messages was cancelled, and the invoice is one more"
        with pytest.raises(sandq.errors.DuplicateKey):
            await client.produce("jobs", "again", unique_key="invoice-1")
        invoice = await client.messages("jobs").get(unique_key="invoice-1")
        assert invoice.value == b"invoice" and invoice.deliver_at_ms == 4_133_980_800_000  # 2101-01-01

        dead = [message async for message in client.dead("poison", "work").list(values=True)]
        assert sorted(message.value for message in dead) == [b"bad 0", b"bad 1"]
        assert {message.error for message in dead} == {"cannot be read"}
        assert [message.value for message in await taken(client, "poison", 1)] == [b"bad 2"]

        keys = client.kv("config")
        found = {entry.key.decode(): entry.value.decode() async for entry in keys.scan()}
        wanted = {f"key {n}": f"value {n}" for n in range(20) if n != 4}
        assert found == wanted | {"key 3": "another", "key 5": "after the start"}
        await client.produce("jobs", "written by this version")


async def check_backup(address: str, location: Location) -> None:
    """Check that the rows pass the checks of a restore."""
    async with sandq.connect(address, timeout=PATIENCE_S) as client:
        manifest = await create_backup(client, location)
        assert {topic.name for topic in manifest.topics} == {"jobs", "poison", "config"}
        restored = await restore_backup(client, location, manifest.backup_id, prefix="again-")
        assert restored.rows > 0
        dead = [message async for message in client.dead("again-poison", "work").list(values=True)]
        assert sorted(message.value for message in dead) == [b"bad 0", b"bad 1"]


def test_every_feature_level_has_an_archive() -> None:
    assert set(NAMES) == {f"level-{level}" for level in range(KNOWN.lowest, KNOWN.highest + 1)}


@pytest.mark.parametrize("name", NAMES)
def test_data_opens_with_everything_in_it(name: str, tmp_path: Path) -> None:
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    node = NodeProcess(tmp_path)
    try:
        node.start()
        trio.run(check, node.address)
        trio.run(check_backup, node.address, open_location(str(tmp_path / "backups")))
        assert node.stop() == 0
        node.start()
    finally:
        node.close()
