"""Handle requests for backups and restores of partitions."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import trio

from sandq.broker.backups.exports import Exports, Piece
from sandq.broker.backups.log_reads import LogPart, LogReads
from sandq.broker.catalog import Catalog
from sandq.broker.peers.metadata_barrier import ANSWER_S
from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.caller import Caller
from sandq.model.errors import Conflict, Unavailable
from sandq.model.stored_rows import check_rows
from sandq.partition import commands as c
from sandq.protocol.request import PartitionRequest
from sandq.protocol.requests_backup import (
    BackupBegin,
    BackupEnd,
    BackupLog,
    BackupRead,
    RestoreBegin,
    RestoreEnd,
    RestoreRows,
)

CHECKS_AT_ONCE: Final = 2
"""Maximum number of chunks of restores whose rows are validated in threads at the same time."""


class Backups:
    """Handles requests for backups and restores on one node. The methods for a partition raise UnknownTopic,
    UnknownPartition, NotLeader."""

    def __init__(self, catalog: Catalog, exports: Exports, log_reads: LogReads) -> None:
        self._catalog = catalog
        self._exports = exports
        self._log_reads = log_reads
        self._checking = trio.CapacityLimiter(CHECKS_AT_ONCE)

    def _host(self, request: PartitionRequest) -> RaftGroup:
        """Return the Raft group of the requested partition on this node."""
        return self._catalog.partition(request.topic, request.partition).raft_group

    # -- backing up -----------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Wait until this node knows all topics. Otherwise a topic could be missing from a backup. Raise
        Unavailable."""
        with trio.move_on_after(ANSWER_S):
            await self._catalog.catch_up()
            return
        raise Unavailable("this node cannot get the current list of topics at present; ask again in a moment")

    async def begin(self, request: BackupBegin, caller: Caller) -> dict[str, Any]:
        """Begin an export of a partition's rows, and return the fields of `Begun`. Raise Overloaded, Unavailable."""
        return (await self._exports.begin(self._host(request))).shown()

    async def read(self, request: BackupRead, caller: Caller) -> Piece:
        """Read a piece of an export. Raise NotFound if the export has ended."""
        return await self._exports.read(self._host(request), request.export, request.after)

    async def end(self, request: BackupEnd, caller: Caller) -> None:
        """End an export."""
        self._exports.end(request.export)

    async def log(self, request: BackupLog, caller: Caller) -> LogPart:
        """Return entries of a partition's log (see `LogReads.read`). Raise Overloaded."""
        return await self._log_reads.read(self._host(request), request)

    # -- restoring ------------------------------------------------------------------------------------------------

    async def restore_begin(self, request: RestoreBegin, caller: Caller) -> dict[str, Any]:
        """Begin a restore of a partition, and return its progress. Raise Conflict."""
        found: dict[str, Any] = await self._host(request).call(c.RestoreBegin(request.restore_id, request.targets))
        return found

    async def restore_rows(self, request: RestoreRows, caller: Caller) -> dict[str, Any]:
        """Restore rows of a partition, and return the progress. Raise InvalidRequest, Conflict."""
        host = self._host(request)
        host.check_ready()
        restore = host.status.restore
        if restore is None or restore.restore_id != request.restore_id:
            # Check this for each request, so that rows for another restore are refused before they are written to the
            # log.
            raise Conflict(f"the partition is not being restored by {request.restore_id}")
        kind = self._catalog.topic(request.topic).record.kind
        check = partial(check_rows, request.data, request.partition, kind)
        await trio.to_thread.run_sync(check, limiter=self._checking)
        command = c.RestoreRows(request.restore_id, request.number, request.data)
        found: dict[str, Any] = await host.call(command, caller.line, size=len(request.data))
        return found

    async def restore_end(self, request: RestoreEnd, caller: Caller) -> dict[str, Any]:
        """End a restore. Raise Conflict if rows are missing, or if the rows do not fit this partition."""
        found: dict[str, Any] = await self._host(request).call(c.RestoreEnd(request.restore_id, request.chunks))
        return found
