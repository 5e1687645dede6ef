"""Reclaim disk space: delete the rows of deleted stores, and compact key ranges in which rows were deleted."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio

from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import StorageFailed, Unavailable
from sandq.partition.partition_status import Status

COMPACT_ROWS = 100_000
"""Number of deleted rows that makes a compaction due, because scans must visit deleted rows until then."""
COMPACT_BYTES = 64 << 20
"""Bytes of deleted rows that make a compaction due.

For a partition with more live bytes than this, the limit is the number of its live bytes. So for each byte that is
reclaimed, at most one byte is rewritten."""
REST_BYTES = 1 << 20
"""Bytes of deleted rows that make a compaction due in an idle partition.

For a partition with more than twice as many live bytes, the limit is half of its live bytes."""
MOST_BYTES = 1 << 30
"""Bytes of live and deleted rows above which a partition is compacted only by LevelDB, or because of `COMPACT_ROWS`.

Otherwise the compaction of a large partition would occupy the maintenance thread for a long time."""


class StoreSweeper:
    """Delete the rows of stores that no pointer names, in bounded steps."""

    def __init__(self, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery

    def sweep_soon(self) -> None:
        """Start a sweep. Called when a store is no longer needed."""
        self._nursery.start_soon(self.sweep)

    async def sweep(self) -> None:
        """Delete all rows of stores that no pointer names, and compact the key range of each store that is then
        empty."""
        start: bytes | None = self._node_log.SWEEP_START
        with suppress(StorageFailed):
            while start is not None:
                start, range_done = await self._runner.ask(partial(self._node_log.sweep, start))
                await self._runner.until_written()
                if range_done is not None:
                    await self._runner.on_maintenance(partial(self._node_log.stores.compact, *range_done))


class StoreCompaction:
    """Compact the store of one replica if it holds many deleted rows. The replica may be a leader or a follower."""

    def __init__(self, host: RaftGroup, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        self._host = host
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery
        self._is_working = False

    def on_status(self, status: Status) -> None:
        """Start a compaction if the new status makes one due."""
        is_ending = self._nursery.cancel_scope.cancel_called
        if not self._is_working and not is_ending and is_due(status):
            self._is_working = True
            self._nursery.start_soon(self._compact)

    async def _compact(self) -> None:
        """Compact the key ranges in which the replica has deleted rows."""
        replica = self._host.replica
        assert isinstance(replica, PartitionReplica)
        with suppress(StorageFailed, Unavailable):  # the state of a shut replica is not available
            for start, stop in await self._runner.ask(replica.take_garbage):
                await self._runner.on_maintenance(partial(self._node_log.stores.compact, start, stop))
        self._is_working = False


def is_due(status: Status) -> bool:
    """Return whether the deleted rows of a partition make a compaction due."""
    if status.garbage_rows >= COMPACT_ROWS:
        return True
    garbage, needed = status.garbage_bytes, status.bytes + status.keys_bytes
    if garbage + needed > MOST_BYTES:
        return False
    return garbage >= max(COMPACT_BYTES, needed) or (status.is_resting and garbage >= max(REST_BYTES, needed // 2))
