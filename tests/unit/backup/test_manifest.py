"""Tests of reading a manifest: only well-formed manifests are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandq.backup import list_backups, open_location, verify_backup
from sandq.backup import manifest as manifests
from sandq.backup.errors import DamagedBackup
from sandq.backup.manifest import FULL, MANIFEST, FilePart, Manifest, PartitionPart, TopicPart
from sandq.model.features import KNOWN

ID = "20300101T000000Z-000000"
PART = PartitionPart(0, 1, 1, 16, (FilePart("data/t/0/00000.sandq", 10, 1, 10),))
TOPIC = TopicPart("t", 1, "timer", 1, 1, {}, None, (PART,))
GOOD = Manifest(
    backup_id=ID,
    kind=FULL,
    cluster="c",
    cluster_uuid="u",
    version="0",
    feature_level=16,
    begun_ms=1,
    ended_ms=2,
    topics=(TOPIC,),
)
FILE = ("topics", 0, "partitions", 0, "files", 0)


def test_manifest_round_trips(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    manifests.write(location, GOOD, None)
    assert manifests.read(location, ID, None) == GOOD


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ((*FILE, "name"), "../../../etc/passwd"),
        ((*FILE, "name"), "data/t/1/00000.sandq"),
        ((*FILE, "bytes"), "x"),
        ((*FILE, "plain_bytes"), None),
        ((*FILE, "blocks"), -1),
        (("topics", 0, "partitions", 0, "level"), None),
        (("topics", 0, "partitions", 0, "partition"), 1),
        (("topics", 0, "name"), "../t"),
        (("feature_level",), str(KNOWN.highest)),
        (("begun_ms",), None),
        (("backup_id",), "../other"),
        (("backup_id",), "20300101T000000Z-000001"),
        (("topics",), 5),
    ],
)
async def test_invalid_manifest_is_refused(tmp_path: Path, where: tuple[Any, ...], what: Any) -> None:
    location = open_location(str(tmp_path))
    manifests.write(location, GOOD, None)
    document = at = json.loads(json.dumps(manifests.read_document(location, ID, MANIFEST, None)))
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = what
    manifests.write_document(location, ID, MANIFEST, document, None)
    (listed,) = await list_backups(location)
    assert listed.manifest is None and "is no valid manifest" in (listed.problem or "")
    with pytest.raises(DamagedBackup):
        await verify_backup(location, ID)


def test_a_manifest_of_before_it_said_which_topics_were_asked_for_is_read(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    manifest = Manifest(
        backup_id=manifests.new_id(1),
        kind=FULL,
        cluster="c",
        cluster_uuid="u",
        version="0",
        feature_level=16,
        begun_ms=1,
        ended_ms=2,
        topics=(),
        only=("a", "b"),
    )
    manifests.write(location, manifest, None)
    assert manifests.read(location, manifest.backup_id, None) == manifest
    document = manifests.read_document(location, manifest.backup_id, manifests.MANIFEST, None)
    del document["only"]
    manifests.write_document(location, manifest.backup_id, manifests.MANIFEST, document, None)
    assert manifests.read(location, manifest.backup_id, None).only is None
    document["only"] = ["../x"]
    manifests.write_document(location, manifest.backup_id, manifests.MANIFEST, document, None)
    with pytest.raises(DamagedBackup):
        manifests.read(location, manifest.backup_id, None)
