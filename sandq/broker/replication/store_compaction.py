"""Give back space that is not needed any more: of deleted stores, and of rows that partitions have deleted."""

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
"""So many deleted rows are compacted away: a scan that begins before them walks over each."""
COMPACT_BYTES = 64 << 20
"""So many bytes are, and at least as many as the partition needs: each of these is written once more for it at most."""
REST_BYTES = 1 << 20
"""The same, once nothing happens in the partition and half as many as it needs are enough."""
MOST_BYTES = 1 << 30
"""Of a larger partition LevelDB takes care by itself: it would keep the thread for maintenance for long."""


class StoreSweeper:
    """Delete the rows of stores that nothing points to, in bounded steps."""

    def __init__(self, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery

    def sweep_soon(self) -> None:
        """Begin a sweep: a store is needed no more."""
        self._nursery.start_soon(self.sweep)

    async def sweep(self) -> None:
        """Look at all stores once."""
        start: bytes | None = self._node_log.SWEEP_START
        with suppress(StorageFailed):
            while start is not None:
                start, range_done = await self._runner.ask(partial(self._node_log.sweep, start))
                await self._runner.until_written()
                if range_done is not None:
                    await self._runner.on_maintenance(partial(self._node_log.stores.compact, *range_done))


class StoreCompaction:
    """Compact the store of one replica, whoever leads, where it keeps deleted rows."""

    def __init__(self, host: RaftGroup, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        self._host = host
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery
        self._is_working = False

    def look(self, status: Status) -> None:
        """Something was applied."""
        is_ending = self._nursery.cancel_scope.cancel_called
        if not self._is_working and not is_ending and is_due(status):
            self._is_working = True
            self._nursery.start_soon(self._compact)

    async def _compact(self) -> None:
        replica = self._host.replica
        assert isinstance(replica, PartitionReplica)
        with suppress(StorageFailed, Unavailable):  # of a replica that is shut nothing is known
            for start, stop in await self._runner.ask(replica.take_garbage):
                await self._runner.on_maintenance(partial(self._node_log.stores.compact, start, stop))
        self._is_working = False


def is_due(status: Status) -> bool:
    """Whether what a partition does not need any more is worth the work."""
    if status.garbage_rows >= COMPACT_ROWS:
        return True
    garbage, needed = status.garbage_bytes, status.bytes + status.keys_bytes
    if garbage + needed > MOST_BYTES:
        return False
    return garbage >= max(COMPACT_BYTES, needed) or (status.is_resting and garbage >= max(REST_BYTES, needed // 2))
