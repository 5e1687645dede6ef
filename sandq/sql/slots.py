"""Limits the number of statements that run at the same time, so that one caller cannot use all slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio


class StatementSlots:
    """A fixed number of slots. A caller that already has a slot never gets the last free one.

    Callers wait in the order of their arrival. A caller that may not take the last slot does not delay later callers.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._held: Counter[Hashable] = Counter()
        self._waiting: list[tuple[Hashable, anyio.Event]] = []

    @asynccontextmanager
    async def one(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold a slot during the block; wait until `owner` may take one."""
        await self._take(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    def _may_take(self, owner: Hashable) -> bool:
        """Return whether an owner may have a further slot. The last slot is for owners without any."""
        return self._free > 1 or (self._free == 1 and not self._held[owner])

    async def _take(self, owner: Hashable) -> None:
        """Take a slot, or wait for one."""
        if self._may_take(owner):
            self._grant(owner)
            return
        waiting = owner, anyio.Event()
        self._waiting.append(waiting)
        try:
            await waiting[1].wait()
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:  # the slot was granted just before the caller was cancelled
                self._give_back(owner)
            raise

    def _grant(self, owner: Hashable) -> None:
        """Give a slot to an owner."""
        self._free -= 1
        self._held[owner] += 1

    def _give_back(self, owner: Hashable) -> None:
        """Release a slot, and give it to a waiting owner."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Give free slots to waiting owners, first come first served."""
        for waiting in list(self._waiting):
            if self._may_take(waiting[0]):
                self._waiting.remove(waiting)
                self._grant(waiting[0])
                waiting[1].set()
