"""The requests that a connection brings for one caller: what they take, and how many are worked on.

A client asks for itself, and has one of these. A gateway asks on behalf of many, and each has one: with an account, a
number and a line of its own, as if it had come by a connection of its own. Only what all of them send and take goes by
one socket, and so it does not help to leave one of them unread: who asks for too much is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio

from sandq.broker.event_loop import Turn
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import Caller
from sandq.model.errors import Overloaded
from sandq.model.limits import Limits
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import Frame, LargeFrame, Type

GRANTED_BYTES: Final = 4096
"""Of requests that are not answered, and of a frame that is half sent, what everybody may have, whatever others
have."""
CONNECTION_REQUESTS_SHARE: Final = 1 / 4
"""What a caller on a connection may have of all requests that are not answered."""
AT_ONCE: Final = 32
"""Requests of a caller that are worked on at once, but for those that wait for something to happen: what it asks
beyond comes after them, or all of it would have a part of every round of the loop. Once `requests_per_connection` are
to be worked on, a connection is not read, and who asks by that of a gateway is refused."""
BEGUN_WORK: Final = 16
"""Of a request that a task of its own works on."""
WAITING_BYTES: Final = 4096
"""What a request that waits for something to happen takes, about, beside what it names."""


class CallerRequests:
    """Those of one caller on one connection."""

    def __init__(
        self, caller: Caller, memory: MemoryBudget, limits: Limits, log: Any, *, has_connection: bool = True
    ) -> None:
        """`log`: tells whose they are. `has_connection`: it asks for itself; otherwise others ask by the same one."""
        self.caller = caller
        self._has_connection = has_connection
        self.log = log
        source = source_of_caller(caller)
        self.incoming = memory.requests.of(source)
        self._waiting = memory.watchers.of(source)
        self._limit = limits.requests_per_connection
        most_bytes = int(CONNECTION_REQUESTS_SHARE * memory.requests.share_bytes)
        self._most_bytes = min(limits.in_flight_bytes_per_connection, most_bytes)
        self._unanswered_bytes = 0
        """Of requests, with what they take beside ..."""
        self._charged_bytes = 0
        """... and what of that is counted for all clients: what goes beyond `GRANTED_BYTES`."""
        self._answered = trio.Event()
        self._working = 0
        """Requests that are worked on, or are to be, ..."""
        self._worked = trio.Event()
        """... fewer than before."""
        self._at_once = 0
        """Requests that are worked on, but for those that wait for something to happen, ..."""
        self._later: deque[tuple[int, Callable[[], Awaitable[None]]]] = deque()
        """... and those that come after them: how many are done together, and what does them."""
        self.listening = 0
        """Requests that wait for something to happen."""

    # -- what they take --------------------------------------------------------------------------------------------

    def count(self, size: int) -> None:
        """So many bytes of requests came, or (less than 0) are answered."""
        self._unanswered_bytes += size
        charge = max(0, self._unanswered_bytes - GRANTED_BYTES) - self._charged_bytes
        if charge > 0:
            self._charged_bytes += charge
            self.incoming.take(charge)
        elif charge and (charge <= -GRANTED_BYTES or charge == -self._charged_bytes):  # not for each small one
            self._charged_bytes += charge
            self.incoming.give_back(-charge)
        if size < 0 and not self._answered.is_set():
            self._answered.set()

    def hand_over(self, size: int, to: CallerRequests) -> None:
        """A request that was counted here is another caller's. Raises Overloaded when that one's are too many."""
        are_too_many = to.are_too_many
        self.count(-size)
        to.count(size)
        if are_too_many:
            raise Overloaded(
                f"the requests of {to.caller.address} take all that they may (limits.memory_bytes); "
                "ask again in a moment"
            )

    @property
    def are_too_many(self) -> bool:
        """So much is not answered yet that nothing more should be taken in."""
        unanswered_bytes = self._unanswered_bytes
        return unanswered_bytes > self._most_bytes or (unanswered_bytes > GRANTED_BYTES and self.incoming.is_full)

    async def until_answered(self) -> None:
        """Wait until more may be taken in."""
        while self.are_too_many:
            self._answered = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_first, nursery, self._answered.wait)
                if self.incoming.is_full:
                    nursery.start_soon(_first, nursery, self.incoming.until_room)

    @contextmanager
    def waits(self, size: int) -> Iterator[None]:
        """Count a request that waits for something to happen, and what it takes beyond `WAITING_BYTES`. Raises
        Overloaded."""
        if self._waiting.is_full:
            raise Overloaded("too many wait for messages or changes here; ask again in a moment")
        size += WAITING_BYTES
        self._waiting.take(size)
        try:
            yield
        finally:
            self._waiting.give_back(size)

    def clear(self) -> None:
        """The connection is gone, and nobody waits for their answers."""
        self.incoming.give_back(self._charged_bytes)
        self._charged_bytes = self._unanswered_bytes = 0

    # -- what is worked on -----------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """As many are to be worked on as may."""
        return self._working >= self._limit

    def begin(self, count: int) -> None:
        """So many are to be worked on. Raises Overloaded where it does not help to leave the connection unread."""
        if self._working + count > self._limit and not self._has_connection:
            raise Overloaded(f"{self._working} requests of {self.caller.address} are being worked on; ask again later")
        self._working += count

    def listen(self) -> None:
        """One more waits for something to happen, until `listening` is one less. Raises Overloaded when as many wait as
        may."""
        if self.listening >= self._limit:
            raise Overloaded(f"{self.listening} requests of this connection wait; wait for their answers")
        self.listening += 1

    def do(self, requests: int, work: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Do what so many ask for now, or after what is done at once already."""
        if self._at_once < AT_ONCE:
            self._at_once += 1
            nursery.start_soon(self._one_after_the_other, requests, work)
        else:
            self._later.append((requests, work))

    async def _one_after_the_other(self, requests: int, work: Callable[[], Awaitable[None]]) -> None:
        turn = Turn()
        while True:
            await work()
            self._working -= requests
            if not self._worked.is_set():
                self._worked.set()
            if not self._later:
                break
            requests, work = self._later.popleft()
            await turn.spend(BEGUN_WORK)
        self._at_once -= 1

    async def until_worked(self) -> None:
        """Wait until more may be worked on."""
        while self.is_busy:
            self._worked = trio.Event()
            await self._worked.wait()


asking: Final[ContextVar[CallerRequests]] = ContextVar("asking")
"""Whose requests a task works on: set where they are read, and handed on to the tasks that are begun for them."""


async def _first(nursery: trio.Nursery, wait: Callable[[], Awaitable[None]]) -> None:
    """Wait for one of several things."""
    await wait()
    nursery.cancel_scope.cancel()


RECEIVE_BYTES = 65_536
"""Of one receive: more at once would keep other connections waiting."""
REQUEST_BYTES = 512
"""What a request that is worked on takes, about, beside the bytes of its frame ..."""
PARSED_COPIES = 8
"""... which take so many times as much as what they say, but for batches: an item of a few bytes is an object."""
_PRODUCE: Final = int(Type.PRODUCE)


def sizes(frames: Sequence[Frame | LargeFrame], came_bytes: int) -> tuple[int, int, int]:
    """What each PRODUCE and each other request takes of those that one receive completed, about, and all of them.

    Each is taken to have as many bytes as the others: to measure them would cost small ones more than it is worth. But
    for a first one none has more than one receive.
    """
    if not frames:
        return 0, 0, 0
    each_bytes = came_bytes // len(frames)
    produces = [one[0] if type(one) is list else one.kind for one in frames].count(_PRODUCE)  # type: ignore[union-attr]
    parsed_bytes = min(each_bytes, RECEIVE_BYTES) if produces else each_bytes
    produce_bytes, other_bytes = each_bytes + REQUEST_BYTES, parsed_bytes * PARSED_COPIES + REQUEST_BYTES
    return produce_bytes, other_bytes, produces * produce_bytes + (len(frames) - produces) * other_bytes
