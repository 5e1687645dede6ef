"""Requests to back up a cluster, and to create topics from a backup.

BACKUP_BEGIN, BACKUP_READ, BACKUP_END, BACKUP_LOG, RESTORE_BEGIN, RESTORE_ROWS and RESTORE_END are for the node that
leads the partition. RESTORE_TOPIC and RESTORE_OPEN are for the node that leads the metadata group. Any other node
replies with the name of that node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from sandq.model.limits import FIXED
from sandq.protocol.fields import U32_MAX
from sandq.protocol.frames import Type
from sandq.protocol.request import U32, Bounds, Partition, Request, characters

TOPICS_PAGE: Final = 200
"""Maximum number of topics in one reply."""
RESTORE_ID_CHARS: Final = 100
TARGETS_MOST: Final = 32_768
KEY_BYTES: Final = 64 << 10
LOG_BYTES: Final = 1 << 20
"""Maximum bytes of entries in a reply. A larger entry is sent alone."""
READER_CHARS: Final = 100

RestoreId = Annotated[str, characters(1, RESTORE_ID_CHARS)]
Name = Annotated[str, characters(1, FIXED.name_chars)]


def _check_targets(value: Any) -> str | None:
    if len(value) > TARGETS_MOST:
        return f"{len(value)} pairs; {TARGETS_MOST} are the limit"
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or any([type(n) is not int or not 0 <= n <= U32_MAX for n in pair]):
            return "expected pairs of the numbers of topics"
    return None


def _check_key(value: bytes) -> str | None:
    return None if len(value) <= KEY_BYTES else f"{len(value)} bytes; {KEY_BYTES} are the limit"


class BackupTopics(Request, type=Type.BACKUP_TOPICS):
    """Return the state of the cluster, and a page of topics by name, with the records of their settings."""

    after: str | None
    limit: Annotated[int, Bounds(1, TOPICS_PAGE)]


class BackupAccess(Request, type=Type.BACKUP_ACCESS):
    """Return a page of identities by principal, with the hashes of their credentials, and all custom roles."""

    after: str | None
    limit: Annotated[int, Bounds(1, TOPICS_PAGE)]


class BackupBegin(Request, type=Type.BACKUP_BEGIN):
    """Keep the current rows of a partition for a limited time, so that BACKUP_READ can read them (an export)."""

    topic: str
    partition: Partition


class BackupRead(Request, type=Type.BACKUP_READ):
    """Return the next rows of an export, after a key."""

    topic: str
    partition: Partition
    export: int
    after: Annotated[bytes, _check_key] | None


class BackupEnd(Request, type=Type.BACKUP_END):
    """Release the rows of an export."""

    topic: str
    partition: Partition
    export: int


class BackupLog(Request, type=Type.BACKUP_LOG):
    """Return entries of a partition's log after index `after`.

    `term`: the term that the entry at `after` must have; None: any. `after` None: return no entries, only the position
    of the log. From now on, the node keeps entries after `pin` (None: all future entries) for this reader, for a
    limited time and within bounds.
    """

    topic: str
    partition: Partition
    reader: Annotated[str, characters(1, READER_CHARS)]
    pin: int | None
    after: int | None
    term: int | None
    max_bytes: Annotated[int, Bounds(0, LOG_BYTES)]


class RestoreTopic(Request, type=Type.RESTORE_TOPIC):
    """Create a topic that accepts no messages until it is opened, or continue with a topic that this restore has
    created. `settings`: the record in the backup."""

    name: Name
    kind: str
    initial_partitions: U32
    partitions: U32
    replicas: U32
    settings: Mapping[str, Any]
    owner: Annotated[str, characters(1, FIXED.principal_chars)] | None
    restore_id: RestoreId


class RestoreBegin(Request, type=Type.RESTORE_BEGIN):
    """Begin to restore a partition, or return its progress. `targets`: pairs (number of a topic in the backup, number
    of the topic in this cluster)."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    targets: Annotated[Sequence[Any], _check_targets]


class RestoreRows(Request, type=Type.RESTORE_ROWS):
    """Store a chunk of rows, as returned by BACKUP_READ. Chunks are numbered from 0."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    number: U32
    data: bytes


class RestoreEnd(Request, type=Type.RESTORE_END):
    """Complete the partition, after `chunks` chunks of rows were stored."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    chunks: U32


class RestoreOpen(Request, type=Type.RESTORE_OPEN):
    """Open a topic whose partitions are all restored. `dead_letter_topic`: destination of its dead letters from now
    on."""

    topic: str
    restore_id: RestoreId
    dead_letter_topic: Name | None
