"""The snapshots that a node receives: how many at a time, and what becomes of those whose connection ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sandq.broker.snapshots.transfer import Answer, ObjectStream, Sink, receive_snapshot
from sandq.model.errors import Overloaded, Unavailable
from sandq.storage.snapshot import Meta

RECEIVING_AT_ONCE = 2
"""Snapshots that a node receives at a time; more are refused, and offered again later."""


class NewStore(Sink, Protocol):
    """A sink that can be given up."""

    def drop(self) -> None:
        """Nobody goes on with it: its rows are garbage. Not called once `finish` was."""
        ...


class Intake:
    """Keeps what a connection left unfinished, one of each group: the next offer of the same snapshot goes on there,
    one of another snapshot begins anew."""

    def __init__(self, begin: Callable[[Meta], Awaitable[NewStore | None]]) -> None:
        """`begin`: a new store for a snapshot. None: the state is here already. Raises SandqError: not now."""
        self._begin = begin
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

    def forget(self, group: int) -> None:
        """This group is no matter of this node any more."""
        kept = self._kept.pop(group, None)
        if kept is not None:
            kept.store.drop()

    def _check_room(self, group: int) -> None:
        if group in self._receiving:
            raise Overloaded(f"a snapshot of group {group} is being received over another connection")
        if len(self._receiving) >= RECEIVING_AT_ONCE:
            raise Overloaded(f"{RECEIVING_AT_ONCE} snapshots are being received; offer it again later")

    async def _sink(self, meta: Meta) -> Sink | None:
        kept = self._kept.get(meta.group)
        if kept is not None and kept.snapshot_id == meta.snapshot_id:
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
        self.snapshot_id = meta.snapshot_id
        self._group = meta.group
        self.store = store
        self._all_kept = all_kept

    @property
    def position(self) -> bytes | None:
        return self.store.position

    async def add(self, data: bytes) -> bool:
        self._check()
        return await self.store.add(data)

    async def finish(self, meta: Meta) -> None:
        self._check()
        # Whether it ends well or not, what was begun here is not gone on with: it may be installed.
        del self._all_kept[self._group]
        await self.store.finish(meta)

    def _check(self) -> None:
        if self._all_kept.get(self._group) is not self:
            raise Unavailable(f"group {self._group} has gone from this node while its snapshot came")
