"""Verification detects a changed backup. The backup restores no topic, and nodes continue whatever it contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

import sandq
from sandq.backup import DamagedBackup, create_backup, open_location, restore_backup, verify_backup
from sandq.backup import manifest as manifests
from sandq.broker.backups import exports
from sandq.errors import InvalidRequest, InvalidSetting
from sandq.partition.base import rows


@pytest.fixture
def location(tmp_path: Path) -> Any:
    return open_location(str(tmp_path / "backups"))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("fair", {"tenants": [1]}),
        ("timer", {"lease_ms": "x"}),
        ("timer", {"group_limits": [5, {"g": [1, 1, "x", "y", "z"]}]}),
        ("timer", {"dedup_window_ms": 2**63}),
        ("compacted", {"partition_delimiter": 5}),
    ],
)
async def test_a_manifest_with_settings_of_no_topic(
    api: sandq.Client, location: Any, kind: str, changes: dict[str, Any]
) -> None:
    await api.admin.create_topic("t", kind=kind)
    await api.produce("t", b"x", key=b"k")
    backup = (await create_backup(api, location)).backup_id
    document = manifests.read_document(location, backup, manifests.MANIFEST, None)
    document["topics"][0]["settings"] |= changes
    manifests.write_document(location, backup, manifests.MANIFEST, document, None)
    for check in (verify_backup(location, backup), restore_backup(api, location, backup, prefix="r-")):
        with pytest.raises(DamagedBackup, match="the settings of topic t"):
            await check
    with pytest.raises(InvalidSetting, match=next(iter(changes)).removesuffix("_ms")):
        await restore_backup(api, location, backup, prefix="r-", verify=False)
    assert [topic.name for topic in await api.admin.list_topics()] == ["t"]
    assert await api.produce("t", b"y", key=b"k")


async def test_a_damaged_row(api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.admin.create_topic("t")
    await api.produce("t", b"x")
    whole = exports._piece

    def damaged(*arguments: Any) -> exports.Piece:
        piece = whole(*arguments)
        flat = msgpack.unpackb(piece.data)
        changed = [
            b"\x02\x01garbage!" if at % 2 and flat[at - 1][:1] == rows.LOG else one for at, one in enumerate(flat)
        ]
        return piece._replace(data=msgpack.packb(changed))

    monkeypatch.setattr(exports, "_piece", damaged)
    backup = (await create_backup(api, location)).backup_id
    for check in (verify_backup(location, backup), restore_backup(api, location, backup, prefix="r-")):
        with pytest.raises(DamagedBackup, match=r"row \d+ of the chunk is damaged"):
            await check
    with pytest.raises(InvalidRequest, match=r"row \d+ of the chunk is damaged"):
        await restore_backup(api, location, backup, prefix="r-", verify=False)
    assert "restoring" in (await api.admin.topic("r-t")).settings
    await api.admin.delete_topic("r-t")
