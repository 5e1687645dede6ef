"""Requests by which a cluster is backed up, and topics are made of a backup.

BACKUP_BEGIN, BACKUP_READ, BACKUP_END, BACKUP_LOG, RESTORE_BEGIN, RESTORE_ROWS and RESTORE_END are for the node that
leads the partition, RESTORE_TOPIC and RESTORE_OPEN for the one that leads the metadata group: another one names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from sandq.model.limits import FIXED
from sandq.protocol.fields import U32_MAX
from sandq.protocol.frames import Type
from sandq.protocol.request import U32, Bounds, Partition, Request, characters

TOPICS_PAGE: Final = 200
"""Topics of one answer."""
RESTORE_ID_CHARS: Final = 100
TARGETS_MOST: Final = 32_768
KEY_BYTES: Final = 64 << 10
LOG_BYTES: Final = 1 << 20
"""Of entries in an answer; a single larger one is alone."""
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
    """What there is to be backed up: the cluster, and a page of topics by name, with the records of their settings."""

    after: str | None
    limit: Annotated[int, Bounds(1, TOPICS_PAGE)]


class BackupAccess(Request, type=Type.BACKUP_ACCESS):
    """A page of identities by principal, with the hashes of what they show, and all roles that somebody made."""

    after: str | None
    limit: Annotated[int, Bounds(1, TOPICS_PAGE)]


class BackupBegin(Request, type=Type.BACKUP_BEGIN):
    """Keep the rows of a partition as they are now, to be read with BACKUP_READ; not for ever."""

    topic: str
    partition: Partition


class BackupRead(Request, type=Type.BACKUP_READ):
    """The next rows of it, behind a key."""

    topic: str
    partition: Partition
    export: int
    after: Annotated[bytes, _check_key] | None


class BackupEnd(Request, type=Type.BACKUP_END):
    """Keep them no longer."""

    topic: str
    partition: Partition
    export: int


class BackupLog(Request, type=Type.BACKUP_LOG):
    """Entries of a partition's log behind the one at `after`, which is of this term, if it is given; None: none, and
    where it stands. Entries behind `pin` (None: those to come) are kept for this reader from now on, for a while and
    within bounds."""

    topic: str
    partition: Partition
    reader: Annotated[str, characters(1, READER_CHARS)]
    pin: int | None
    after: int | None
    term: int | None
    max_bytes: Annotated[int, Bounds(0, LOG_BYTES)]


class RestoreTopic(Request, type=Type.RESTORE_TOPIC):
    """Make a topic that takes nothing until it is opened, or go on with one that this restore has made. `settings`: the
    record of a backup."""

    name: Name
    kind: str
    initial_partitions: U32
    partitions: U32
    replicas: U32
    settings: Mapping[str, Any]
    owner: Annotated[str, characters(1, FIXED.principal_chars)] | None
    restore_id: RestoreId


class RestoreBegin(Request, type=Type.RESTORE_BEGIN):
    """Begin to restore a partition, or ask how far it is. `targets`: pairs of the number that a topic had, and that
    which it has here."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    targets: Annotated[Sequence[Any], _check_targets]


class RestoreRows(Request, type=Type.RESTORE_ROWS):
    """Put a chunk of rows there: what BACKUP_READ gave, numbered from 0 on."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    number: U32
    data: bytes


class RestoreEnd(Request, type=Type.RESTORE_END):
    """Let the rows of so many chunks be the partition."""

    topic: str
    partition: Partition
    restore_id: RestoreId
    chunks: U32


class RestoreOpen(Request, type=Type.RESTORE_OPEN):
    """All partitions of a topic are there: let it be used. `dead_letter_topic`: where its dead letters go from now
    on."""

    topic: str
    restore_id: RestoreId
    dead_letter_topic: Name | None
