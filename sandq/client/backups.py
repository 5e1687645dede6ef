"""Backing up and restoring, request by request: for `sandq.backup`, which says what they are for.

A request is tried again within the client's `timeout`, wherever a partition moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sandq.client.client import Client
from sandq.client.transport.requests import call, call_leader
from sandq.model.errors import ProtocolError
from sandq.protocol.frames import Frame
from sandq.protocol.requests_access import IdentityPut, RolePut
from sandq.protocol.requests_backup import (
    LOG_BYTES,
    TOPICS_PAGE,
    BackupAccess,
    BackupBegin,
    BackupEnd,
    BackupLog,
    BackupRead,
    BackupTopics,
    RestoreBegin,
    RestoreEnd,
    RestoreOpen,
    RestoreRows,
    RestoreTopic,
)

__all__ = ["LOG_BYTES", "BackupTransfer", "LogPiece", "Piece"]


class Piece(NamedTuple):
    """Rows of a partition, one behind the other."""

    position: bytes | None
    """To read on behind."""
    is_last: bool
    data: bytes
    """As `put_rows` takes it."""


class LogPiece(NamedTuple):
    """Entries of a partition's log, one behind the other."""

    gone: str | None
    """Why those that were asked for are not to be had (any more); None: they are."""
    applied: int
    """Index of the last entry that there was: a part may be left."""
    time_ms: int
    """By the cluster's clock: everything that was acknowledged up to then stands up to there."""
    term_before: int
    """Of the entry behind which they were asked for."""
    used: float
    """Of what the node keeps for readers of this log, about so much is used, of 1."""
    entries: list[Any]
    """Term and command, in turns; an empty command is an entry of Raft's own."""


class BackupTransfer:
    """The requests, over a client. All need the right `cluster`, and rights on the topic or `security`."""

    def __init__(self, client: Client) -> None:
        self._cluster = client._cluster

    # -- backing up -----------------------------------------------------------------------------------------------

    async def catalog(self) -> dict[str, Any]:
        """The cluster and all of its topics, with the records of their settings; `hidden`: how many more there are, on
        which there is no right."""
        found: dict[str, Any] | None = None
        topics: list[dict[str, Any]] = []
        hidden = 0
        while True:
            after = topics[-1]["name"] if topics else None
            page = _map(await call(self._cluster, BackupTopics(after, TOPICS_PAGE)))
            found = found or page
            rows = _rows(page, "topics")
            topics += rows
            hidden += int(page.get("hidden", 0))
            if len(rows) < TOPICS_PAGE:
                return {**found, "topics": topics, "hidden": hidden}

    async def access(self) -> dict[str, Any]:
        """All identities, with the hashes of what they show, and roles."""
        identities: list[dict[str, Any]] = []
        while True:
            after = identities[-1]["principal"] if identities else None
            page = _map(await call(self._cluster, BackupAccess(after, TOPICS_PAGE)))
            rows = _rows(page, "identities")
            identities += rows
            if len(rows) < TOPICS_PAGE:
                return {"identities": identities, "roles": page.get("roles", {})}

    async def begin(self, topic: str, partition: int) -> dict[str, Any]:
        """Have the rows of a partition kept as they are now: `export`, `index`, `time_ms`, `level`, `bytes`."""
        return _map(await call_leader(self._cluster, BackupBegin(topic, partition)))

    async def read(self, topic: str, partition: int, export: int, after: bytes | None) -> Piece:
        """The next of them. NotFound when they are not kept any more, or another node leads the partition by now."""
        frame = await call_leader(self._cluster, BackupRead(topic, partition, export, after))
        if len(frame) < 5 or type(frame[3]) is not bool or type(frame[4]) is not bytes:
            raise ProtocolError("BACKUP_READ reply: a position, whether it is the last, and rows are expected")
        return Piece(frame[2], frame[3], frame[4])

    async def end(self, topic: str, partition: int, export: int) -> None:
        """Have them kept no longer."""
        await call_leader(self._cluster, BackupEnd(topic, partition, export))

    async def read_log(
        self,
        topic: str,
        partition: int,
        reader: str,
        pin: int | None,
        after: int | None,
        term: int | None = None,
        max_bytes: int = LOG_BYTES,
    ) -> LogPiece:
        """Entries behind the one at `after`, of this term. Those behind `pin` are kept from now on (None: those to
        come), within bounds, until nobody has asked for five minutes."""
        request = BackupLog(topic, partition, reader, pin, after, term, max_bytes)
        piece = _log_piece(await call_leader(self._cluster, request))
        if piece is None:
            raise ProtocolError("BACKUP_LOG reply: what stands there, and entries are expected")
        return piece

    async def pin_log(self, topic: str, partition: int, reader: str, pin: int | None) -> LogPiece:
        """Have the entries behind `pin` kept, and read none."""
        return await self.read_log(topic, partition, reader, pin, None, None, 0)

    # -- restoring ------------------------------------------------------------------------------------------------

    async def restore_topic(self, name: str, topic: Mapping[str, Any], replicas: int, restore_id: str) -> int:
        """Make a topic that takes nothing yet, or go on with it. Its number."""
        request = RestoreTopic(
            name,
            topic["kind"],
            topic["initial_partitions"],
            topic["partitions"],
            replicas,
            topic["settings"],
            topic.get("owner"),
            restore_id,
        )
        record = _map(await call(self._cluster, request))
        self._cluster.forget(name)
        return int(record["number"])

    async def begin_partition(
        self, topic: str, partition: int, restore_id: str, targets: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """Begin to restore a partition, or tell how far it is: `next_chunk`, `rows`, `bytes`, `whole`."""
        return _map(await call_leader(self._cluster, RestoreBegin(topic, partition, restore_id, targets)))

    async def put_rows(self, topic: str, partition: int, restore_id: str, number: int, data: bytes) -> dict[str, Any]:
        """Put a chunk of rows there; how far it is then."""
        return _map(await call_leader(self._cluster, RestoreRows(topic, partition, restore_id, number, data)))

    async def end_partition(self, topic: str, partition: int, restore_id: str, chunks: int) -> dict[str, Any]:
        """Let the rows be the partition; how far it is then."""
        return _map(await call_leader(self._cluster, RestoreEnd(topic, partition, restore_id, chunks)))

    async def open_topic(self, topic: str, restore_id: str, dead_letter_topic: str | None) -> None:
        """Let a topic be used."""
        await call(self._cluster, RestoreOpen(topic, restore_id, dead_letter_topic))
        self._cluster.forget(topic)

    async def put_role(self, name: str, grants: Sequence[str]) -> None:
        """Make a role, or give it these grants."""
        await call(self._cluster, RolePut(name, grants))

    async def put_identity(self, identity: Mapping[str, Any], *, is_new: bool) -> None:
        """Make an identity of a backup, or let one be as it was there. Conflict when a new one is there already."""
        changes = {name: identity[name] for name in ("grants", "expires_ms", "quota", "note")}
        if identity["secret_hash"] is not None:
            changes["secret_hash"] = identity["secret_hash"]
        await call(self._cluster, IdentityPut(identity["principal"], is_new, changes))


def _log_piece(frame: Frame) -> LogPiece | None:
    """None: it is no answer to BACKUP_LOG."""
    match frame[2:]:
        case [
            str() | None as gone,
            int() as applied,
            int() as time_ms,
            int() as term,
            float() as used,
            list() as found,
        ]:
            is_whole = len(found) % 2 == 0 and set(map(type, found[1::2])) <= {bytes}
            if is_whole and set(map(type, found[::2])) <= {int}:
                return LogPiece(gone, applied, time_ms, term, used, found)
    return None


def _map(frame: Frame) -> dict[str, Any]:
    if len(frame) < 3 or type(frame[2]) is not dict:
        raise ProtocolError("a map is expected as the reply to a request of a backup")
    found: dict[str, Any] = frame[2]
    return found


def _rows(page: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = page.get(name)
    if type(found) is not list or not all(type(row) is dict for row in found):
        raise ProtocolError(f"{name} of a backup: rows are expected")
    return found
