"""Tests of reading a manifest: only well-formed manifests are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandq.backup import list_backups, place_of, verify_backup
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


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    place = place_of(str(tmp_path))
    manifests.write(place, GOOD, None)
    assert manifests.read(place, ID, None) == GOOD


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
    place = place_of(str(tmp_path))
    manifests.write(place, GOOD, None)
    document = at = json.loads(json.dumps(manifests.read_document(place, ID, MANIFEST, None)))
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = what
    manifests.write_document(place, ID, MANIFEST, document, None)
    (listed,) = await list_backups(place)
    assert listed.manifest is None and "is no valid manifest" in (listed.problem or "")
    with pytest.raises(DamagedBackup):
        await verify_backup(place, ID)


def test_a_manifest_of_before_it_said_which_topics_were_asked_for_is_read(tmp_path: Path) -> None:
    place = place_of(str(tmp_path))
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
    manifests.write(place, manifest, None)
    assert manifests.read(place, manifest.backup_id, None) == manifest
    document = manifests.read_document(place, manifest.backup_id, manifests.MANIFEST, None)
    del document["only"]
    manifests.write_document(place, manifest.backup_id, manifests.MANIFEST, document, None)
    assert manifests.read(place, manifest.backup_id, None).only is None
    document["only"] = ["../x"]
    manifests.write_document(place, manifest.backup_id, manifests.MANIFEST, document, None)
    with pytest.raises(DamagedBackup):
        manifests.read(place, manifest.backup_id, None)
