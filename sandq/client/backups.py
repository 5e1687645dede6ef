"""The single requests of backups and restores; `sandq.backup` combines them.

Requests are retried within the client's `timeout`, even if a partition moves to another node.
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
    """Consecutive rows of a partition."""

    position: bytes | None
    """Position after which to continue."""
    is_last: bool
    data: bytes
    """The rows, in the format that `put_rows` accepts."""


class LogPiece(NamedTuple):
    """Consecutive entries of a partition's log."""

    gone: str | None
    """Why the requested entries are not available (any more). None if they are available."""
    applied: int
    """Index of the last existing entry; more entries may remain to be read."""
    time_ms: int
    """Cluster time in ms. The entries up to `applied` include everything that was acknowledged up to this time."""
    term_before: int
    """Term of the entry after which entries were requested."""
    used: float
    """Approximate used share, 0 to 1, of the log space that the node keeps for readers."""
    entries: list[Any]
    """Term, command, term, command, ... An empty command is an internal entry of Raft."""


class BackupTransfer:
    """Sends the requests through a client. Each requires the right `cluster`, and rights on the topic or the right
    `security`."""

    def __init__(self, client: Client) -> None:
        self._cluster = client._cluster

    # -- backing up -----------------------------------------------------------------------------------------------

    async def catalog(self) -> dict[str, Any]:
        """Return the cluster and all its topics, with the records of their settings.

        `hidden`: number of further topics that the caller has no right on.
        """
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
        """Return all identities, with the hashes of their secrets, and all roles."""
        identities: list[dict[str, Any]] = []
        while True:
            after = identities[-1]["principal"] if identities else None
            page = _map(await call(self._cluster, BackupAccess(after, TOPICS_PAGE)))
            rows = _rows(page, "identities")
            identities += rows
            if len(rows) < TOPICS_PAGE:
                return {"identities": identities, "roles": page.get("roles", {})}

    async def begin(self, topic: str, partition: int) -> dict[str, Any]:
        """Pin a snapshot of a partition's rows; return `export`, `index`, `time_ms`, `level`, `bytes`."""
        return _map(await call_leader(self._cluster, BackupBegin(topic, partition)))

    async def read(self, topic: str, partition: int, export: int, after: bytes | None) -> Piece:
        """Read the next rows. Raises NotFound if the snapshot was dropped or the leadership has moved."""
        frame = await call_leader(self._cluster, BackupRead(topic, partition, export, after))
        if len(frame) < 5 or type(frame[3]) is not bool or type(frame[4]) is not bytes:
            raise ProtocolError("BACKUP_READ reply: a position, whether it is the last, and rows are expected")
        return Piece(frame[2], frame[3], frame[4])

    async def end(self, topic: str, partition: int, export: int) -> None:
        """Release a snapshot."""
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
        """Read log entries after the entry at index `after`, which has the term `term`.

        From now on, the node keeps entries after `pin` (None: only future entries), within limits. It stops five
        minutes after the last request.
        """
        request = BackupLog(topic, partition, reader, pin, after, term, max_bytes)
        piece = _log_piece(await call_leader(self._cluster, request))
        if piece is None:
            raise ProtocolError("BACKUP_LOG reply: the state of the log and its entries are expected")
        return piece

    async def pin_log(self, topic: str, partition: int, reader: str, pin: int | None) -> LogPiece:
        """Keep the entries after `pin`, without reading any."""
        return await self.read_log(topic, partition, reader, pin, None, None, 0)

    # -- restoring ------------------------------------------------------------------------------------------------

    async def restore_topic(self, name: str, topic: Mapping[str, Any], replicas: int, restore_id: str) -> int:
        """Create a topic for a restore, or continue a restore. Return the topic's number. The topic accepts no messages
        yet."""
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
        """Begin to restore a partition, or return its progress: `next_chunk`, `rows`, `bytes`, `whole`."""
        return _map(await call_leader(self._cluster, RestoreBegin(topic, partition, restore_id, targets)))

    async def put_rows(self, topic: str, partition: int, restore_id: str, number: int, data: bytes) -> dict[str, Any]:
        """Restore a chunk of rows; return the progress."""
        return _map(await call_leader(self._cluster, RestoreRows(topic, partition, restore_id, number, data)))

    async def end_partition(self, topic: str, partition: int, restore_id: str, chunks: int) -> dict[str, Any]:
        """Make the restored rows the content of the partition; return the progress."""
        return _map(await call_leader(self._cluster, RestoreEnd(topic, partition, restore_id, chunks)))

    async def open_topic(self, topic: str, restore_id: str, dead_letter_topic: str | None) -> None:
        """Open a restored topic for use."""
        await call(self._cluster, RestoreOpen(topic, restore_id, dead_letter_topic))
        self._cluster.forget(topic)

    async def put_role(self, name: str, grants: Sequence[str]) -> None:
        """Create a role, or replace its grants."""
        await call(self._cluster, RolePut(name, grants))

    async def put_identity(self, identity: Mapping[str, Any], *, is_new: bool) -> None:
        """Create an identity of a backup, or change an existing identity to its state in the backup. Raises Conflict if
        `is_new` and the identity exists."""
        changes = {name: identity[name] for name in ("grants", "expires_ms", "quota", "note")}
        if identity["secret_hash"] is not None:
            changes["secret_hash"] = identity["secret_hash"]
        await call(self._cluster, IdentityPut(identity["principal"], is_new, changes))


def _log_piece(frame: Frame) -> LogPiece | None:
    """Parse the reply to BACKUP_LOG; None if it is invalid."""
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
