"""The snapshots that a node receives: how many at a time, and what becomes of those whose connection ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from sandq.broker.snapshots.transfer import Answer, ObjectStream, Sink, receive_snapshot
from sandq.model.errors import Overloaded, Unavailable
from sandq.storage.snapshot import Meta

KEPT_S = 600.0
"""What a connection left unfinished is kept for so long, for the sender to go on with."""
RECEIVING_AT_ONCE = 2
"""Snapshots that a node receives at a time; more are refused, and offered again later."""


class NewStore(Sink, Protocol):
    """A sink that can be given up."""

    def drop(self) -> None:
        """Nobody goes on with it: its rows are garbage. Not called once `finish` was."""
        ...


class Intake:
    """Keeps what a connection left unfinished, one of each group, for a while: the next offer of the same snapshot goes
    on there, one of another snapshot begins anew."""

    def __init__(
        self, begin: Callable[[Meta], Awaitable[NewStore | None]], needs: Callable[[Meta], bool] = lambda meta: True
    ) -> None:
        """`begin`: a new store for a snapshot. None: the state is here already. Raises SandqError: not now.
        `needs(meta)`: whether this node has not come to the state of this snapshot in another way."""
        self._begin = begin
        self._needs = needs
        self._kept: dict[int, _Kept] = {}
        self._receiving: set[int] = set()

    async def receive(self, stream: ObjectStream) -> Answer:
        """As `receive_snapshot`."""
        groups: list[int] = []

        async def accept(meta: Meta) -> Sink | None:
            self._check_room(meta.group)
            self._receiving.add(meta.group)
            groups.append(meta.group)
            return await self._sink(meta)

        try:
            return await receive_snapshot(stream, accept)
        finally:
            self._receiving.difference_update(groups)

    @property
    def chunk_bytes(self) -> int:
        """Of the chunks that are being stored."""
        return sum([kept.chunk_bytes for kept in list(self._kept.values())])

    def forget(self, group: int) -> None:
        """This group is no matter of this node any more."""
        kept = self._kept.pop(group, None)
        if kept is not None:
            kept.store.drop()

    def drop_stale(self) -> None:
        """Drop what nobody goes on with: its sender went, or the log had the rest of it after all."""
        until_s = trio.current_time() - KEPT_S
        for group, kept in list(self._kept.items()):
            if group not in self._receiving and (kept.used_s < until_s or not self._needs(kept.meta)):
                self.forget(group)

    def _check_room(self, group: int) -> None:
        if group in self._receiving:
            raise Overloaded(f"a snapshot of group {group} is being received over another connection")
        if len(self._receiving) >= RECEIVING_AT_ONCE:
            raise Overloaded(f"{RECEIVING_AT_ONCE} snapshots are being received; offer it again later")

    async def _sink(self, meta: Meta) -> Sink | None:
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
    """A sink as long as it is kept."""

    def __init__(self, meta: Meta, store: NewStore, all_kept: dict[int, _Kept]) -> None:
        self.meta = meta
        self.used_s = trio.current_time()
        """When something was added last."""
        self.chunk_bytes = 0
        """Of what is being added."""
        self.store = store
        self._all_kept = all_kept

    @property
    def position(self) -> bytes | None:
        return self.store.position

    async def add(self, data: bytes) -> bool:
        self._check()
        self.used_s = trio.current_time()
        self.chunk_bytes = len(data)
        try:
            return await self.store.add(data)
        finally:
            self.chunk_bytes = 0

    async def finish(self, meta: Meta) -> None:
        self._check()
        # Whether it ends well or not, what was begun here is not gone on with: it may be installed.
        del self._all_kept[self.meta.group]
        await self.store.finish(meta)

    def _check(self) -> None:
        if self._all_kept.get(self.meta.group) is not self:
            raise Unavailable(f"group {self.meta.group} has gone from this node while its snapshot came")
