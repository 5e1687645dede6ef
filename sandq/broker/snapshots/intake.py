"""Limit the snapshots that a node receives at the same time. Keep an unfinished snapshot after its connection has
ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from sandq.broker.snapshots.transfer import Answer, ObjectStream, Sink, receive_snapshot
from sandq.model.errors import Overloaded, Unavailable
from sandq.storage.snapshot import Meta

KEPT_S = 600.0
"""Time in s for which an unfinished snapshot is kept after its last chunk, so that the sender can continue."""
RECEIVING_AT_ONCE = 2
"""Maximum number of snapshots that a node receives at the same time.

Further snapshots are refused, and offered again later."""


class NewStore(Sink, Protocol):
    """A sink that can be dropped."""

    def drop(self) -> None:
        """Drop the sink. Its rows become garbage. This function is not called after `finish`."""
        ...


class Intake:
    """Receives snapshots, and keeps the unfinished snapshot of each group for a while.

    If a node offers the same snapshot again, the transfer continues where it ended. If a node offers a different
    snapshot, the transfer starts from the beginning.
    """

    def __init__(
        self, begin: Callable[[Meta], Awaitable[NewStore | None]], needs: Callable[[Meta], bool] = lambda meta: True
    ) -> None:
        """`begin(meta)`: return a new store for a snapshot; None if this node has its state already. If the snapshot
        cannot be received now, `begin` raises SandqError. `needs(meta)`: return whether this node still needs the
        snapshot."""
        self._begin = begin
        self._needs = needs
        self._kept: dict[int, _Kept] = {}
        self._receiving: set[int] = set()

    async def receive(self, stream: ObjectStream) -> Answer:
        """Receive the snapshot that is offered on a stream (see `receive_snapshot`)."""
        groups: list[int] = []

        async def accept(meta: Meta) -> Sink | None:
            """Return the sink for an offered snapshot. The snapshot counts as being received until this stream ends."""
            self._check_capacity(meta.group)
            self._receiving.add(meta.group)
            groups.append(meta.group)
            return await self._sink(meta)

        try:
            return await receive_snapshot(stream, accept)
        finally:
            self._receiving.difference_update(groups)

    @property
    def chunk_bytes(self) -> int:
        """Total size in bytes of the chunks that are being stored."""
        return sum([kept.chunk_bytes for kept in list(self._kept.values())])

    def forget(self, group: int) -> None:
        """Drop the unfinished snapshot of a group that this node no longer has."""
        kept = self._kept.pop(group, None)
        if kept is not None:
            kept.store.drop()

    def drop_stale(self) -> None:
        """Drop unfinished snapshots that got no data for `KEPT_S`, or that this node no longer needs."""
        until_s = trio.current_time() - KEPT_S
        for group, kept in list(self._kept.items()):
            if group not in self._receiving and (kept.used_s < until_s or not self._needs(kept.meta)):
                self.forget(group)

    def _check_capacity(self, group: int) -> None:
        """Raise Overloaded if a snapshot of this group, or the maximum number of snapshots, is being received."""
        if group in self._receiving:
            raise Overloaded(f"a snapshot of group {group} is being received over a different connection")
        if len(self._receiving) >= RECEIVING_AT_ONCE:
            raise Overloaded(f"{RECEIVING_AT_ONCE} snapshots are being received; offer it again later")

    async def _sink(self, meta: Meta) -> Sink | None:
        """Return the sink of the unfinished snapshot, or a new sink. Return None if this node has the state already."""
        kept = self._kept.get(meta.group)
        if kept is not None and kept.meta.snapshot_id == meta.snapshot_id:
            return kept
        self.forget(meta.group)
        store = await self._begin(meta)
        if store is None:
            return None
        kept = self._kept[meta.group] = _Kept(meta, store, self._kept)
        return kept


class _Kept:
    """A sink that is kept while its snapshot is unfinished."""

    def __init__(self, meta: Meta, store: NewStore, all_kept: dict[int, _Kept]) -> None:
        self.meta = meta
        self.used_s = trio.current_time()
        """Time on trio's clock at which data was last added, in s."""
        self.chunk_bytes = 0
        """Size in bytes of the chunk that is being added; 0 if there is none."""
        self.store = store
        self._all_kept = all_kept

    @property
    def position(self) -> bytes | None:
        return self.store.position

    async def add(self, data: bytes) -> bool:
        """Add a chunk (see `Sink.add`). Raise Unavailable if the group was removed from this node."""
        self._check()
        self.used_s = trio.current_time()
        self.chunk_bytes = len(data)
        try:
            return await self.store.add(data)
        finally:
            self.chunk_bytes = 0

    async def finish(self, meta: Meta) -> None:
        """Install the snapshot (see `Sink.finish`)."""
        self._check()
        # Even if an error follows, the snapshot may be installed. So the transfer can no longer be continued.
        del self._all_kept[self.meta.group]
        await self.store.finish(meta)

    def _check(self) -> None:
        """Raise Unavailable if this sink was dropped, because its group was removed."""
        if self._all_kept.get(self.meta.group) is not self:
            raise Unavailable(f"group {self.meta.group} was removed from this node while its snapshot was received")
