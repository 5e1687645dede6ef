"""Exports: a backup client reads the rows of a partition, as of one moment, in pieces.

While an export exists, the files with its rows stay on disk. So the number of exports is limited, and an idle export is
dropped.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack
import trio

from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import NotFound, Overloaded, Unavailable
from sandq.model.logger import get_logger
from sandq.storage.snapshot import Exporter
from sandq.storage.stores import StoresSnapshot

log = get_logger("sandq.backup")

EXPORTS_AT_ONCE: Final = 8
"""Maximum number of exports that exist at the same time, for all clients."""
READS_AT_ONCE: Final = 4
"""Maximum number of pieces that are read at the same time, for all clients."""
IDLE_S: Final = 120.0
"""Time in s after which an export that is not read is dropped."""
CHECK_S: Final = 5.0
"""Interval in s at which idle exports are dropped."""
PIECE_ROWS: Final = 2048
PIECE_BYTES: Final = 512 << 10
"""Maximum bytes of rows in an answer. A row that is larger is sent alone."""


class Begun(NamedTuple):
    """A new export: the rows of a partition as of one log entry."""

    export: int
    """Number of the export."""
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    """Raft index of the last entry that the rows include."""
    time_ms: int
    """Time of the partition after the entry `index`, in ms."""
    level: int
    bytes: int
    """Approximate size of the rows on disk."""

    def shown(self) -> dict[str, Any]:
        """Return the fields as a map, for the reply to the client."""
        return self._asdict()


class Piece(NamedTuple):
    """Consecutive rows of an export."""

    position: bytes | None
    """Key of the last row. If there is no row: the key after which rows were requested."""
    is_last: bool
    data: bytes
    """Keys and values alternating, in MessagePack."""


@dataclass(slots=True, eq=False)
class _Export:
    """The snapshot of one export."""

    group: int
    rows: StoresSnapshot
    exporter: Exporter
    used_s: float
    """Time in s (trio's clock) at which the export was last read."""
    reads: int = 0
    """Number of pieces that are being read now."""
    is_over: bool = False
    """True once the export has ended. It is deleted when no piece is being read any more."""


class Exports:
    """The exports of one node."""

    def __init__(self, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` must outlive every connection."""
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery
        self._exports: dict[int, _Export] = {}
        self._begun = 0
        """Number of exports that are being created."""
        self._reading = trio.CapacityLimiter(READS_AT_ONCE)
        self._is_watched = False

    async def begin(self, host: RaftGroup) -> Begun:
        """Begin an export of the rows of a partition. They include all writes acknowledged before this call.

        Raise NotLeader; Overloaded if the maximum number of exports exists; Unavailable while the partition is being
        restored or its clock is being set back."""
        if len(self._exports) + self._begun >= EXPORTS_AT_ONCE:
            raise Overloaded(
                f"{EXPORTS_AT_ONCE} partitions are being read for backups on this node, the maximum; ask again later"
            )
        self._begun += 1  # count this export now, so that concurrent calls respect the maximum
        try:
            await host.read()
            rows, begun = await self._runner.ask(partial(self._view, host))
            pointer = self._node_log.pointers.get(host.number)
            if pointer is None:
                self._release(rows)
                raise Unavailable("the partition was closed meanwhile")
            exporter = Exporter(rows, pointer.store)
            try:
                size = await self._runner.on_maintenance(lambda: exporter.total_bytes)
            except BaseException:
                self._release(rows)
                raise
            number = secrets.randbits(62)
            self._exports[number] = _Export(host.number, rows, exporter, trio.current_time())
        finally:
            self._begun -= 1
        if not self._is_watched:
            self._is_watched = True
            self._nursery.start_soon(self._watch)
        return begun._replace(export=number, bytes=max(size, int(host.status.bytes)))

    def _view(self, host: RaftGroup) -> tuple[StoresSnapshot, Begun]:
        """Return a snapshot of the rows, and a description of the export without its number and size.

        Runs on the apply thread."""
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        machine = replica.machine
        machine.check_available()
        rows, index = self._node_log.view(host)
        return rows, Begun(0, index, machine.now_ms, machine.shared.level, 0)

    async def read(self, host: RaftGroup, number: int, after: bytes | None) -> Piece:
        """Return the next rows after the key `after`. Raise NotFound if the export has ended."""
        export = self._exports.get(number)
        if export is None or export.group != host.number or export.is_over:
            raise NotFound("the export has ended: begin again")
        export.reads += 1
        try:
            async with self._reading:
                return await self._runner.on_maintenance(partial(_piece, export.exporter, after))
        finally:
            export.reads -= 1
            export.used_s = trio.current_time()
            if export.is_over:
                self._drop(number)

    def end(self, number: int) -> None:
        """End an export. Do nothing if the export has ended already."""
        export = self._exports.get(number)
        if export is not None:
            export.is_over = True
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Delete an export that no task reads. If a task still reads a piece, the last such task deletes the export."""
        export = self._exports.get(number)
        if export is not None and not export.reads:
            del self._exports[number]
            self._release(export.rows)

    def _release(self, rows: StoresSnapshot) -> None:
        """Release the snapshot of the rows on the maintenance thread."""
        self._runner.hand_to_maintenance(rows.close)

    async def _watch(self) -> None:
        """Drop idle exports. When the node stops, drop all exports."""
        try:
            while self._exports or self._begun:
                await trio.sleep(CHECK_S)
                idle_since_s = trio.current_time() - IDLE_S
                for number, export in list(self._exports.items()):
                    if not export.reads and export.used_s < idle_since_s:
                        log.warning("a backup has stopped reading: its rows are no longer kept", group=export.group)
                        self.end(number)
        finally:
            self._is_watched = False
            for number in list(self._exports):
                self.end(number)


def _piece(exporter: Exporter, after: bytes | None) -> Piece:
    """Return the next rows after the key `after`. Runs on the maintenance thread."""
    flat, is_last = exporter.rows(after, PIECE_ROWS, PIECE_BYTES)
    return Piece(flat[-2] if flat else after, is_last, msgpack.packb(flat))
