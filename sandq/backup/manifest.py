"""The manifest of a backup: its last file. Without it the backup does not exist.

PERSISTED: JSON, in a file of the format of `file_format`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sandq.backup.errors import DamagedBackup, NoBackup
from sandq.backup.file_format import Reader, Writer
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location
from sandq.model.errors import InvalidName
from sandq.model.features import KNOWN
from sandq.model.names import check_name

MANIFEST: Final = "manifest.sandq"
FULL: Final = "full"


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of rows."""

    name: str
    """Name in the backup's folder."""
    bytes: int
    blocks: int
    plain_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """A partition as of an entry of its log."""

    partition: int
    index: int
    time_ms: int
    level: int
    """The feature level whose rules its rows follow."""
    files: tuple[FilePart, ...]

    @property
    def blocks(self) -> int:
        """Number of chunks of rows, in all files."""
        return sum([file.blocks for file in self.files])

    @property
    def plain_bytes(self) -> int:
        return sum([file.plain_bytes for file in self.files])

    def check(self, folder: str) -> None:
        """Raise ValueError for invalid data of a partition whose files are in this folder."""
        numbers = [self.partition, self.index, self.time_ms, self.level]
        for at, file in enumerate(self.files):
            numbers += file.bytes, file.blocks, file.plain_bytes
            if file.name != f"{folder}/{at:05}.sandq":
                raise ValueError(f"a file {file.name!r:.200} in {folder}")
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"an invalid number of partition {self.partition!r:.20}")

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PartitionPart:
        """Build the description of a partition from JSON."""
        files = tuple(FilePart(**file) for file in found["files"])
        return cls(found["partition"], found["index"], found["time_ms"], found["level"], files)


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic with the arguments of its creation."""

    name: str
    number: int
    kind: str
    initial_partitions: int
    replicas: int
    settings: dict[str, Any]
    owner: str | None
    partitions: tuple[PartitionPart, ...]

    @property
    def made_with(self) -> dict[str, Any]:
        """The arguments to create the topic again."""
        return {
            "kind": self.kind,
            "initial_partitions": self.initial_partitions,
            "partitions": len(self.partitions),
            "settings": self.settings,
            "owner": self.owner,
        }

    @property
    def plain_bytes(self) -> int:
        return sum([part.plain_bytes for part in self.partitions])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup. Times in epoch milliseconds."""

    backup_id: str
    kind: str
    cluster: str
    cluster_uuid: str
    version: str
    feature_level: int
    begun_ms: int
    ended_ms: int
    topics: tuple[TopicPart, ...]
    access: dict[str, Any] | None = field(default=None, repr=False)
    """Identities, with the hashes of tokens, and roles; None if they were not included."""
    warnings: tuple[str, ...] = ()
    key_id: str | None = None
    """Id of the key that encrypts the backup; None if it is not encrypted."""
    only: tuple[str, ...] | None = None
    """The requested topics; None for all."""

    @property
    def bytes(self) -> int:
        """Size of all files of rows."""
        return sum([file.bytes for part in self.parts for file in part.files])

    @property
    def plain_bytes(self) -> int:
        return sum([topic.plain_bytes for topic in self.topics])

    @property
    def parts(self) -> list[PartitionPart]:
        """The partitions of all topics."""
        return [part for topic in self.topics for part in topic.partitions]

    def topic(self, name: str) -> TopicPart:
        """Return a topic of the backup. Raises NoBackup."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise NoBackup(f"backup {self.backup_id} has no topic {name!r}")

    def shown(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        return {
            "backup_id": self.backup_id,
            "kind": self.kind,
            "cluster": self.cluster,
            "cluster_uuid": self.cluster_uuid,
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "topics": [topic.name for topic in self.topics],
            "partitions": len(self.parts),
            "bytes": self.bytes,
            "plain_bytes": self.plain_bytes,
            "identities": self.access is not None,
            "encrypted": self.key_id is not None,
            "warnings": list(self.warnings),
        }


def new_id(now_ms: int | None = None) -> str:
    """Return the id of a new backup; ids sort by time."""
    now_s = time.time() if now_ms is None else now_ms / 1000
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{secrets.token_hex(3)}"


def write(location: Location, manifest: Manifest, key: BackupKey | None) -> None:
    """Write the manifest, which completes a backup. Blocking."""
    document = asdict(manifest)
    for identity in (document["access"] or {}).get("identities", ()):
        if identity["secret_hash"] is not None:
            identity["secret_hash"] = identity["secret_hash"].hex()
    del document["key_id"]
    write_document(location, manifest.backup_id, MANIFEST, document, key)


def read(location: Location, backup_id: str, key: BackupKey | None) -> Manifest:
    """Read the manifest of a backup. Blocking. Raises NoBackup, DamagedBackup, WrongKey."""
    check_id(backup_id)
    name = f"{backup_id}/{MANIFEST}"
    if not location.exists(name):
        raise NoBackup(f"there is no backup {backup_id!r} in {location.shown}, or it was not finished")
    shown = f"{location.shown}/{name}"
    document = read_document(location, backup_id, MANIFEST, key)
    try:
        found = _manifest(document, key)
        _check(found, backup_id)
        return found
    except (KeyError, TypeError, ValueError, AttributeError, InvalidName) as error:
        raise DamagedBackup(shown, 0, f"it is no valid manifest: {error!r}") from None


def _manifest(document: dict[str, Any], key: BackupKey | None) -> Manifest:
    topics = tuple(
        TopicPart(**{**topic, "partitions": tuple(map(PartitionPart.of, topic["partitions"]))})
        for topic in document["topics"]
    )
    access = document["access"]
    for identity in access["identities"] if access is not None else ():
        if identity["secret_hash"] is not None:
            identity["secret_hash"] = bytes.fromhex(identity["secret_hash"])
    known = {name: document[name] for name in Manifest.__dataclass_fields__ if name in document}
    warnings = tuple(document["warnings"])
    key_id = None if key is None else key.key_id
    only = None if document.get("only") is None else tuple(document["only"])
    replaced = {"topics": topics, "access": access, "warnings": warnings, "key_id": key_id, "only": only}
    return Manifest(**{**known, **replaced})


def _check(manifest: Manifest, backup_id: str) -> None:
    """Raise ValueError for invalid data: an attacker may have written it to make us read other files."""
    if manifest.backup_id != backup_id or type(manifest.feature_level) is not int:
        raise ValueError("invalid id or feature level")
    if any(type(value) is not int for value in (manifest.begun_ms, manifest.ended_ms)):
        raise ValueError("invalid times")
    for name in manifest.only or ():
        check_name("topic", name)
    for topic in manifest.topics:
        check_name("topic", topic.name)
        if [part.partition for part in topic.partitions] != list(range(len(topic.partitions))):
            raise ValueError(f"invalid partitions of topic {topic.name}")
        for part in topic.partitions:
            part.check(f"data/{topic.name}/{part.partition}")


def check_level(manifest: Manifest) -> None:
    """Raise NoBackup for a backup whose feature level this version does not know."""
    levels = [manifest.feature_level, *[part.level for part in manifest.parts]]
    if min(levels) < KNOWN.lowest:
        raise NoBackup(
            f"backup {manifest.backup_id} is of feature level {min(levels)}, that of a development version of sandq, "
            f"and this version supports {KNOWN}: it cannot be restored"
        )
    newest = max(levels)
    if newest > KNOWN.highest:
        raise NoBackup(
            f"backup {manifest.backup_id} is of feature level {newest} (sandq {manifest.version}), and this version "
            f"knows {KNOWN}: restore it with a version as new as that"
        )


def check_id(backup_id: str) -> None:
    """Raise NoBackup if this is not a valid id of a backup."""
    if not backup_id or not backup_id.replace("-", "").isalnum() or not backup_id.isascii() or len(backup_id) > 80:
        raise NoBackup(f"{backup_id!r:.100} is no backup")


def write_document(location: Location, backup_id: str, name: str, document: Any, key: BackupKey | None) -> None:
    """Write a file with one document. Blocking."""
    data = json.dumps(document, separators=(",", ":")).encode()
    with location.create(f"{backup_id}/{name}") as stream:
        writer = Writer(stream, backup_id, name, key)
        for at in range(0, len(data), 1 << 20):
            writer.write(data[at : at + (1 << 20)])
        writer.end()


def read_document(location: Location, backup_id: str, name: str, key: BackupKey | None) -> Any:
    """Read a document. Blocking. Raises NoBackup, DamagedBackup, WrongKey."""
    path = f"{backup_id}/{name}"
    with location.open(path) as stream:
        reader = Reader(stream, backup_id, name, key, f"{location.shown}/{path}")
        data = b"".join(reader.blocks())
    try:
        return json.loads(data)
    except ValueError as error:
        raise DamagedBackup(f"{location.shown}/{path}", 0, f"it is no JSON: {error}") from None
