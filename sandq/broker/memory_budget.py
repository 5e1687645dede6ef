"""The memory budget of a node: whatever may grow has an account, with a share of `limits.memory_bytes`.

A budget gates before something is read, proposed or taken in, or it evicts a cache. It never changes what `apply`
answers: replicas with other budgets stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

import anyio

from sandq.partition.reader.look_aheads import LookAheads

LOOK_AHEADS_SHARE: Final = 1 / 16
LOGS_SHARE: Final = 1 / 4
ROWS_SHARE: Final = 1 / 64
SNAPSHOTS_SHARE: Final = 1 / 16
REQUESTS_SHARE: Final = 1 / 8
ANSWERS_SHARE: Final = 1 / 8
WATCHERS_SHARE: Final = 1 / 32
PRODUCERS_SHARE: Final = 1 / 16
HTTP_SHARE: Final = 5 / 32
SOURCE_SHARE: Final = 3 / 4
"""Of an account that clients fill, what those of one source may have."""
GO_ON_AT: Final = 7 / 8
"""Of its share a full account must have come down to, before those who wait for it go on."""


class Held(Protocol):
    """What one use of memory holds, and how much it may."""

    @property
    def bytes(self) -> int: ...

    @property
    def share_bytes(self) -> float: ...


class _Counted:
    """Memory that is counted as it is taken and given back; on the event loop, unless it says otherwise."""

    def __init__(self, share_bytes: float) -> None:
        self.share_bytes = share_bytes
        self.taken = 0
        """What the loop has taken and not given back; ..."""
        self.read = 0
        """... what the apply thread has taken, ever: a number that two threads change would lose changes."""
        self._room = anyio.Event()
        self._has_waiters = False

    @property
    def bytes(self) -> int:
        """What is held."""
        return self.taken + self.read

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken. For any thread."""
        return self.taken + self.read >= self.share_bytes

    def take(self, size: int) -> None:
        """Count what there is, whether there is room or not."""
        self.taken += size

    def hold(self, size: int) -> None:
        """The same on the apply thread."""
        self.read += size

    def give_back(self, size: int) -> None:
        """It is there no more; whoever waits for room may have it."""
        self.taken -= size
        if self._has_waiters:
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        if self.bytes <= GO_ON_AT * self.share_bytes:
            self._has_waiters = False
            self._room.set()
            self._room = anyio.Event()

    async def until_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full:
            self._has_waiters = True
            await self._room.wait()

    def fits(self, size: int) -> bool:
        """Whether there is room for so much. What is larger than the share has room when there is nothing else."""
        return not self.bytes or self.bytes + size <= self.share_bytes


class Account(_Counted):
    """One use of memory, by the clients of all sources."""

    def __init__(self, share_bytes: float) -> None:
        super().__init__(share_bytes)
        self._queue: list[_Reservation] = []
        self._shares: WeakValueDictionary[str, SourceShare] = WeakValueDictionary()

    def of(self, source: str) -> SourceShare:
        """What the clients of a source (`sandq/model/sources.py`) have of it; as long as somebody keeps it."""
        share = self._shares.get(source)
        if share is None:
            share = self._shares[source] = SourceShare(self)
        return share

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for room."""
        return self._has_waiters or bool(self._queue)

    def give_back(self, size: int) -> None:
        self.taken -= size
        if self.is_waited_for:
            self.give_on()

    def give_on(self) -> None:
        """Some of it was given back: whoever waits for room may have it."""
        if self._has_waiters:
            self._tell_waiters()
        if self._queue:
            self._grant()

    async def reserve(self, size: int, share: SourceShare | None = None) -> None:
        """Take so much once there is room for all of it, in the order of those who ask; of a source that has its
        share after others."""
        if not self._queue and self.fits(size) and (share is None or share.fits(size)):
            (self if share is None else share).take(size)
            return
        reservation = _Reservation(size, share)
        self._queue.append(reservation)
        self._grant()
        try:
            await reservation.granted.wait()
        except BaseException:
            if reservation.granted.is_set():
                (self if share is None else share).give_back(size)
            else:
                self._queue.remove(reservation)
                self._grant()  # it may have kept smaller ones behind it
            raise

    def _grant(self) -> None:
        at = 0
        while at < len(self._queue):
            size, share = self._queue[at].size, self._queue[at].share
            if share is not None and not share.fits(size):
                at += 1  # it waits for its own source; others need not
            elif not self.fits(size):
                break
            else:
                (self if share is None else share).take(size)
                self._queue.pop(at).granted.set()


class SourceShare(_Counted):
    """What the clients of one source have of an account: three quarters of it at most.

    So those of one source alone never take what others need. Who is behind a proxy has the proxy's address.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(SOURCE_SHARE * account.share_bytes)
        self._account = account

    @property
    def is_full(self) -> bool:
        account = self._account  # by no calls: it is asked for every answer
        return self.taken + self.read >= self.share_bytes or account.taken + account.read >= account.share_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for room that clients of this source have."""
        return self._has_waiters or self._account.is_waited_for

    def take(self, size: int) -> None:
        self.taken += size
        self._account.taken += size

    def hold(self, size: int) -> None:
        self.read += size
        self._account.read += size

    def give_back(self, size: int) -> None:
        account = self._account
        self.taken -= size
        account.taken -= size
        if self._has_waiters:
            self._tell_waiters()
        if account.is_waited_for:
            account.give_on()

    async def until_room(self) -> None:
        while self.is_full:
            if self._account.is_full:
                await self._account.until_room()
            else:
                self._has_waiters = True
                await self._room.wait()

    async def reserve(self, size: int) -> None:
        """Take so much once there is room for all of it, here and in the account."""
        await self._account.reserve(size, self)

    def has_room(self, size: int) -> bool:
        """Whether there is room for so much, here and in the account."""
        return self.fits(size) and self._account.fits(size)


class _Reservation:
    """Somebody who waits for so many bytes."""

    def __init__(self, size: int, share: SourceShare | None) -> None:
        self.size = size
        self.share = share
        self.granted = anyio.Event()


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
        """Frames of which a part has come, and requests that are not answered."""
        self.answers = Account(limit_bytes * ANSWERS_SHARE)
        """What was read for clients, or is queued for them, and has not left this node."""
        self.watchers = Account(limit_bytes * WATCHERS_SHARE)
        """Requests that wait for messages, or for changes of keys."""
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
