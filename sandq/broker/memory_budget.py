"""The memory budget of a node. Each kind of data that may grow has an account with a share of `limits.memory_bytes`.

If the account of a cache is full, the cache shrinks. If another account is full, new work is delayed or refused before
the node reads, proposes or accepts it. Budgets never change the results of `apply`, so replicas with different budgets
stay equal.
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
"""Share of an account that the clients of one source (`sandq/model/sources.py`) may use."""
RESUME_AT: Final = 7 / 8
"""Fraction of an account's share. After an account was full, waiting tasks continue when at most this fraction is
used."""


class Held(Protocol):
    """Memory that one kind of data uses now, and its share of the budget, both in bytes."""

    @property
    def bytes(self) -> int: ...

    @property
    def share_bytes(self) -> float: ...


class _Counted:
    """Counts the bytes that are in use. Each user calls a method when it takes or gives back memory.

    Methods run on the event loop, except where noted."""

    def __init__(self, share_bytes: float) -> None:
        self.share_bytes = share_bytes
        self.taken = 0
        """Bytes that the event loop has taken, minus all bytes that were given back. Bytes of `read` are given back
        here, too."""
        self.read = 0
        """Total of the bytes that the apply thread has taken.

        Kept apart from `taken`: if two threads changed one number at the same time, a change could be lost."""
        self._freed = anyio.Event()
        self._has_waiters = False

    @property
    def bytes(self) -> int:
        """The bytes held."""
        return self.taken + self.read

    @property
    def is_full(self) -> bool:
        """True if the whole share is used. May be read on any thread."""
        return self.taken + self.read >= self.share_bytes

    def take(self, size: int) -> None:
        """Count `size` bytes, even if they exceed the share."""
        self.taken += size

    def hold(self, size: int) -> None:
        """Count `size` bytes. Called on the apply thread."""
        self.read += size

    def give_back(self, size: int) -> None:
        """Stop counting `size` bytes, and wake tasks that wait for free bytes."""
        self.taken -= size
        if self._has_waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        """If enough bytes are free, wake all tasks in `wait_for_capacity`."""
        if self.bytes <= RESUME_AT * self.share_bytes:
            self._has_waiters = False
            self._freed.set()
            self._freed = anyio.Event()

    async def wait_for_capacity(self) -> None:
        """Wait until the account is not full."""
        while self.is_full:
            self._has_waiters = True
            await self._freed.wait()

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes fit. If nothing else is held, any size fits."""
        return not self.bytes or self.bytes + size <= self.share_bytes


class Account(_Counted):
    """The account of one kind of data, shared by the clients of all sources."""

    def __init__(self, share_bytes: float) -> None:
        super().__init__(share_bytes)
        self._queue: list[_Reservation] = []
        self._shares: WeakValueDictionary[str, SourceShare] = WeakValueDictionary()

    def of(self, source: str) -> SourceShare:
        """Return the share of a source (`sandq/model/sources.py`). The share exists as long as a caller keeps a
        reference to it."""
        share = self._shares.get(source)
        if share is None:
            share = self._shares[source] = SourceShare(self)
        return share

    @property
    def is_waited_for(self) -> bool:
        """True if tasks wait for free bytes."""
        return self._has_waiters or bool(self._queue)

    def give_back(self, size: int) -> None:
        self.taken -= size
        if self.is_waited_for:
            self.wake_next()

    def wake_next(self) -> None:
        """Wake tasks that wait for free bytes. Call this after bytes were given back."""
        if self._has_waiters:
            self._wake_waiters()
        if self._queue:
            self._grant()

    async def reserve(self, size: int, share: SourceShare | None = None) -> None:
        """Wait until all `size` bytes fit, and take them.

        Reservations are granted in order. If a source has used up its share, its reservations are skipped until that
        source gives bytes back."""
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
                self._grant()  # the removed reservation may have blocked smaller reservations
            raise

    def _grant(self) -> None:
        """Grant waiting reservations in order, as long as they fit. Skip reservations of full sources."""
        at = 0
        while at < len(self._queue):
            size, share = self._queue[at].size, self._queue[at].share
            if share is not None and not share.fits(size):
                at += 1  # only this source is full: grant reservations of other sources
            elif not self.fits(size):
                break
            else:
                (self if share is None else share).take(size)
                self._queue.pop(at).granted.set()


class SourceShare(_Counted):
    """The part of an account that the clients of one source may use: three quarters.

    So one source never uses up the account. Clients behind the same proxy count as one source.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(SOURCE_SHARE * account.share_bytes)
        self._account = account

    @property
    def is_full(self) -> bool:
        account = self._account  # computed without method calls, because this runs for every answer
        return self.taken + self.read >= self.share_bytes or account.taken + account.read >= account.share_bytes

    @property
    def is_waited_for(self) -> bool:
        """True if tasks wait for free bytes of this source or of the account."""
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
            self._wake_waiters()
        if account.is_waited_for:
            account.wake_next()

    async def wait_for_capacity(self) -> None:
        while self.is_full:
            if self._account.is_full:
                await self._account.wait_for_capacity()
            else:
                self._has_waiters = True
                await self._freed.wait()

    async def reserve(self, size: int) -> None:
        """Wait until all `size` bytes fit both into this share and into the account, and take them."""
        await self._account.reserve(size, self)

    def has_capacity(self, size: int) -> bool:
        """Return whether `size` bytes fit both into this share and into the account."""
        return self.fits(size) and self._account.fits(size)


class _Reservation:
    """A task that waits for `size` bytes."""

    def __init__(self, size: int, share: SourceShare | None) -> None:
        self.size = size
        self.share = share
        self.granted = anyio.Event()


class Measured:
    """The account of one kind of data whose size is measured on demand. The owner of the data keeps the size within the
    share."""

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
        """Messages that groups have read ahead in the log."""
        self.requests = Account(limit_bytes * REQUESTS_SHARE)
        """Partially received frames, and pending requests."""
        self.answers = Account(limit_bytes * ANSWERS_SHARE)
        """Data that was read for clients, or is queued for them, and is not sent yet."""
        self.watchers = Account(limit_bytes * WATCHERS_SHARE)
        """Requests that wait for messages or for changes of keys."""
        self._accounts: dict[str, Held] = {
            "look_aheads": self.look_aheads,
            "requests": self.requests,
            "answers": self.answers,
            "watchers": self.watchers,
        }

    @property
    def accounts(self) -> dict[str, Held]:
        """The accounts by their names in metrics."""
        return dict(self._accounts)

    def measure(self, name: str, share: float, measure: Callable[[], int]) -> Measured:
        """Add an account whose size `measure` returns. `share`: fraction of the budget for this account."""
        account = self._accounts[name] = Measured(self.limit_bytes * share, measure)
        return account
