"""The memory budget of a node: whatever may grow has an account, with a share of `limits.memory_bytes`.

A budget gates before something is read, proposed or taken in, or it evicts a cache. It never changes what `apply`
answers: replicas with other budgets stay the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

from sandq.partition.log.look_aheads import LookAheads

LOOK_AHEADS_SHARE: Final = 1 / 16
LOGS_SHARE: Final = 1 / 4
SNAPSHOTS_SHARE: Final = 1 / 16
REQUESTS_SHARE: Final = 1 / 8
ANSWERS_SHARE: Final = 1 / 4
WATCHERS_SHARE: Final = 1 / 32
PRODUCERS_SHARE: Final = 1 / 16
GO_ON_AT: Final = 7 / 8
"""Of its share a full account must have come down to, before those who wait for it go on."""


class Held(Protocol):
    """What one use of memory holds, and how much it may."""

    @property
    def bytes(self) -> int: ...

    @property
    def share_bytes(self) -> float: ...


class Account:
    """One use of memory that is counted as it is taken and given back; on the event loop, unless it says otherwise."""

    def __init__(self, share_bytes: float) -> None:
        self.share_bytes = share_bytes
        self.taken = 0
        """What the loop has taken and not given back; ..."""
        self.read = 0
        """... what the apply thread has taken, ever: a number that two threads change would lose changes."""
        self._queue: deque[_Place] = deque()
        self._room = trio.Event()
        self._is_waited_for = False

    @property
    def bytes(self) -> int:
        """What is held."""
        return self.taken + self.read

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken. For any thread."""
        return self.taken + self.read >= self.share_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for room."""
        return self._is_waited_for or bool(self._queue)

    def take(self, size: int) -> None:
        """Count what there is, whether there is room or not."""
        self.taken += size

    def give_back(self, size: int) -> None:
        """It is there no more; whoever waits for room may have it."""
        self.taken -= size
        if self._is_waited_for and self.bytes <= GO_ON_AT * self.share_bytes:
            self._is_waited_for = False
            self._room.set()
            self._room = trio.Event()
        while self._queue and self._fits(self._queue[0].size):
            place = self._queue.popleft()
            self.taken += place.size
            place.granted.set()

    async def until_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full:
            self._is_waited_for = True
            await self._room.wait()

    async def reserve(self, size: int) -> None:
        """Take so much once there is room for all of it, in the order of those who ask. What is larger than the share
        gets it when nobody else has anything."""
        if not self._queue and self._fits(size):
            self.taken += size
            return
        place = _Place(size)
        self._queue.append(place)
        try:
            await place.granted.wait()
        except BaseException:
            if place.granted.is_set():
                self.give_back(size)
            else:
                self._queue.remove(place)
                self.give_back(0)  # it may have kept smaller ones behind it
            raise

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self.share_bytes


class _Place:
    """Somebody who waits for so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = trio.Event()


class Measured:
    """One use of memory that is counted when it is asked for; its owner sees to its share."""

    def __init__(self, share_bytes: float, measure: Callable[[], int]) -> None:
        self.share_bytes = share_bytes
        self._measure = measure

    @property
    def bytes(self) -> int:
        return self._measure()


class MemoryBudget:
    """All accounts of a node."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.look_aheads = LookAheads(limit_bytes * LOOK_AHEADS_SHARE)
        """What groups have read ahead in the log."""
        self.requests = Account(limit_bytes * REQUESTS_SHARE)
        """Frames of which a part has come."""
        self.answers = Account(limit_bytes * ANSWERS_SHARE)
        """What was read for clients, or is queued for them, and has not left this node."""
        self.watchers = Account(limit_bytes * WATCHERS_SHARE)
        """Requests that wait for changes of keys."""
        self._accounts: dict[str, Held] = {
            "look_aheads": self.look_aheads,
            "requests": self.requests,
            "answers": self.answers,
            "watchers": self.watchers,
        }

    @property
    def accounts(self) -> dict[str, Held]:
        """By their names in metrics."""
        return dict(self._accounts)

    def measure(self, name: str, share: float, measure: Callable[[], int]) -> Measured:
        """Add an account that its owner counts."""
        account = self._accounts[name] = Measured(self.limit_bytes * share, measure)
        return account
