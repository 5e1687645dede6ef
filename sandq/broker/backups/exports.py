"""Rows of partitions as they are at one moment, kept for a client that backs them up and reads them piece by piece.

What is kept costs space on the disk for as long as it is: there are few at a time, and one that nobody reads goes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack
import structlog
import trio

from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import NotFound, Overloaded, Unavailable
from sandq.storage.snapshot import Exporter
from sandq.storage.stores import StoresSnapshot

log = structlog.get_logger("sandq.backup")

EXPORTS_AT_ONCE: Final = 8
"""Of all clients."""
READS_AT_ONCE: Final = 4
"""Pieces that are read and not yet sent, of all clients."""
IDLE_S: Final = 120.0
"""One of which nothing is read for so long goes."""
LOOK_S: Final = 5.0
PIECE_ROWS: Final = 2048
PIECE_BYTES: Final = 512 << 10
"""Rows of an answer, at most; a single larger one is alone in its answer."""


class Begun(NamedTuple):
    """What is read from now on: rows as of an entry."""

    export: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants of it
    """Of the last entry whose doing they have."""
    time_ms: int
    """The time of the partition then."""
    level: int
    bytes: int
    """What they take on the disk, roughly."""

    def shown(self) -> dict[str, Any]:
        """Return it as an answer has it."""
        return self._asdict()


class Piece(NamedTuple):
    """Rows, one behind the other."""

    position: bytes | None
    """Key of the last one; None: there was none so far."""
    is_last: bool
    data: bytes
    """MessagePack: keys and values in turns."""


@dataclass(slots=True, eq=False)
class _Export:
    group: int
    rows: StoresSnapshot
    exporter: Exporter
    used_s: float
    reads: int = 0
    is_over: bool = False


class Exports:
    """Of one node."""

    def __init__(self, node_log: NodeLog, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` outlives every connection."""
        self._node_log = node_log
        self._runner = runner
        self._nursery = nursery
        self._exports: dict[int, _Export] = {}
        self._begun = 0
        """Those that are about to be kept."""
        self._reading = trio.CapacityLimiter(READS_AT_ONCE)
        self._is_watched = False

    async def begin(self, host: RaftGroup) -> Begun:
        """Keep the rows of a partition, with everything that was acknowledged before this call. Raises NotLeader;
        Overloaded while as many as may be are kept; Unavailable while the partition is being restored or set back."""
        if len(self._exports) + self._begun >= EXPORTS_AT_ONCE:
            raise Overloaded(
                f"{EXPORTS_AT_ONCE} partitions are being read for backups on this node, and no more may be at a time"
            )
        self._begun += 1
        try:
            await host.read()
            rows, begun = await self._runner.ask(partial(self._view, host))
            pointer = self._node_log.pointers.get(host.number)
            if pointer is None:
                self._let_go(rows)
                raise Unavailable("the partition was closed meanwhile")
            exporter = Exporter(rows, pointer.store)
            try:
                size = await self._runner.on_maintenance(lambda: exporter.total_bytes)
            except BaseException:
                self._let_go(rows)
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
        """On the apply thread."""
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        machine = replica.machine
        machine.check_places()
        rows, index = self._node_log.view(host)
        return rows, Begun(0, index, machine.now_ms, machine.shared.level, 0)

    async def read(self, host: RaftGroup, number: int, after: bytes | None) -> Piece:
        """The next rows. Raises NotFound: they are not kept (any more)."""
        export = self._exports.get(number)
        if export is None or export.group != host.number or export.is_over:
            raise NotFound("the rows are not kept (any more): begin again")
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
        """Keep them no longer; those that are not kept are no mistake."""
        export = self._exports.get(number)
        if export is not None:
            export.is_over = True
            self._drop(number)

    def _drop(self, number: int) -> None:
        export = self._exports.get(number)
        if export is not None and not export.reads:
            del self._exports[number]
            self._let_go(export.rows)

    def _let_go(self, rows: StoresSnapshot) -> None:
        self._runner.hand_to_maintenance(rows.close)

    async def _watch(self) -> None:
        """Let go of what nobody reads; of all when the node ends."""
        try:
            while self._exports or self._begun:
                await trio.sleep(LOOK_S)
                idle_since_s = trio.current_time() - IDLE_S
                for number, export in list(self._exports.items()):
                    if not export.reads and export.used_s < idle_since_s:
                        log.warning("a backup stopped to read: its rows are not kept any more", group=export.group)
                        self.end(number)
        finally:
            self._is_watched = False
            for number in list(self._exports):
                self.end(number)


def _piece(exporter: Exporter, after: bytes | None) -> Piece:
    flat, is_last = exporter.rows(after, PIECE_ROWS, PIECE_BYTES)
    return Piece(flat[-2] if flat else after, is_last, msgpack.packb(flat))
