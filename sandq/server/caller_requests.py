"""The requests of one caller on one connection: their memory, and how many are worked on at a time.

A client sends requests for itself, and has one `CallerRequests`. A gateway sends requests for many callers. Each of
these callers has its own limits and its own queue, as if it had its own connection. But all callers of a gateway share
one socket, so the node cannot stop reading for one caller only. Instead, it refuses requests of a caller that has too
many in progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio

from sandq.broker.event_loop import TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import Caller
from sandq.model.errors import Overloaded
from sandq.model.limits import Limits
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import Frame, LargeFrame, Type

GRANTED_BYTES: Final = 4096
"""Bytes of unanswered requests and of an incomplete frame that every caller may have, even if memory is used up."""
CONNECTION_REQUESTS_SHARE: Final = 1 / 4
"""Part of the memory for requests that one caller on one connection may use."""
AT_ONCE: Final = 32
"""Maximum number of requests of one caller that are worked on at a time. Requests that wait for an event do not count.

Further requests are queued. Without that limit, each request would get a share of every round of the event loop. With
`requests_per_connection` requests in progress, a client's connection is not read, and requests of a gateway's caller
are refused."""
BEGUN_WORK: Final = 16
"""Units of work to start a request in a task."""
WAITING_BYTES: Final = 4096
"""Approximate memory of a request that waits for an event, in bytes, without the memory that its handler adds."""


class CallerRequests:
    """The unanswered requests of one caller on one connection."""

    def __init__(
        self, caller: Caller, memory: MemoryBudget, limits: Limits, log: Any, *, has_connection: bool = True
    ) -> None:
        """Create the account of one caller.

        `log`: a logger that is bound to the caller. `has_connection`: True if the caller has the connection for itself,
        False if it is one of a gateway's callers."""
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
        """Bytes of all unanswered requests, including estimated overhead."""
        self._charged_bytes = 0
        """Bytes of the unanswered requests above `GRANTED_BYTES`. Only these bytes are charged to the memory budget."""
        self._answered = trio.Event()
        self._working = 0
        """Number of requests that are being worked on or queued. Requests that wait for an event do not count."""
        self._worked = trio.Event()
        """Set when the number of requests in progress decreases."""
        self._at_once = 0
        """Number of tasks that work on requests. Tasks of requests that wait for an event do not count."""
        self._later: deque[tuple[int, Callable[[], Awaitable[None]]]] = deque()
        """Queue of further work: the number of requests that are done together, and the function that does them."""
        self.listening = 0
        """Number of requests that wait for an event."""

    # -- memory ----------------------------------------------------------------------------------------------------

    def count(self, size: int) -> None:
        """Add the bytes of received requests. A negative size removes the bytes of answered requests."""
        self._unanswered_bytes += size
        charge = max(0, self._unanswered_bytes - GRANTED_BYTES) - self._charged_bytes
        if charge > 0:
            self._charged_bytes += charge
            self.incoming.take(charge)
        elif charge and (charge <= -GRANTED_BYTES or charge == -self._charged_bytes):  # release small amounts together
            self._charged_bytes += charge
            self.incoming.give_back(-charge)
        if size < 0 and not self._answered.is_set():
            self._answered.set()

    def hand_over(self, size: int, to: CallerRequests) -> None:
        """Move a request to the account of another caller. Raise Overloaded if that caller has too many requests."""
        are_too_many = to.are_too_many
        self.count(-size)
        to.count(size)
        if are_too_many:
            raise Overloaded(
                f"the requests of {to.caller.address} use all the memory that they may (limits.memory_bytes); "
                "ask again in a moment"
            )

    @property
    def are_too_many(self) -> bool:
        """Whether the unanswered requests use too much memory: no more should be read."""
        unanswered_bytes = self._unanswered_bytes
        return unanswered_bytes > self._most_bytes or (unanswered_bytes > GRANTED_BYTES and self.incoming.is_full)

    async def until_answered(self) -> None:
        """Wait until more requests may be read."""
        while self.are_too_many:
            self._answered = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_first, nursery, self._answered.wait)
                if self.incoming.is_full:
                    nursery.start_soon(_first, nursery, self.incoming.wait_for_capacity)

    @contextmanager
    def waits(self, size: int) -> Iterator[None]:
        """Count a request that waits for an event, and the memory that it holds: `WAITING_BYTES` and `size` bytes.

        Raise Overloaded."""
        if self._waiting.is_full:
            raise Overloaded("too many requests wait for messages or changes here; ask again in a moment")
        size += WAITING_BYTES
        self._waiting.take(size)
        try:
            yield
        finally:
            self._waiting.give_back(size)

    def clear(self) -> None:
        """Release all memory: the connection has ended, so no replies are needed."""
        self.incoming.give_back(self._charged_bytes)
        self._charged_bytes = self._unanswered_bytes = 0

    # -- work ------------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether as many requests are in progress as the limit allows."""
        return self._working >= self._limit

    def begin(self, count: int) -> None:
        """Count requests as in progress.

        Raise Overloaded if the limit is reached and the caller shares the connection. A caller that has the connection
        for itself is stopped by not reading its socket."""
        if self._working + count > self._limit and not self._has_connection:
            raise Overloaded(f"{self._working} requests of {self.caller.address} are being worked on; ask again later")
        self._working += count

    def listen(self) -> None:
        """Count a request that waits for an event; the caller of this method decrements `listening` when it ends.

        Raise Overloaded if the limit is reached."""
        if self.listening >= self._limit:
            raise Overloaded(f"{self.listening} requests of this connection wait for events; wait for replies first")
        self.listening += 1

    def do(self, requests: int, work: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Do the work of `requests` requests in a new task. If `AT_ONCE` tasks work already, queue it for them."""
        if self._at_once < AT_ONCE:
            self._at_once += 1
            nursery.start_soon(self._one_after_the_other, requests, work)
        else:
            self._later.append((requests, work))

    async def _one_after_the_other(self, requests: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do this work, then the work that is queued, until the queue is empty.

        `requests`: number of requests that `work` does together."""
        time_slice = TimeSlice()
        while True:
            await work()
            self._working -= requests
            if not self._worked.is_set():
                self._worked.set()
            if not self._later:
                break
            requests, work = self._later.popleft()
            await time_slice.spend(BEGUN_WORK)
        self._at_once -= 1

    async def until_worked(self) -> None:
        """Wait until more requests may be in progress."""
        while self.is_busy:
            self._worked = trio.Event()
            await self._worked.wait()


asking: Final[ContextVar[CallerRequests]] = ContextVar("asking")
"""The caller's requests that the current task works on. The reader task sets it, and tasks it starts inherit it."""


async def _first(nursery: trio.Nursery, wait: Callable[[], Awaitable[None]]) -> None:
    """Wait for one event, then cancel the tasks of the nursery, which wait for other events."""
    await wait()
    nursery.cancel_scope.cancel()


RECEIVE_BYTES = 65_536
"""Maximum bytes of one receive. More would delay other connections."""
REQUEST_BYTES = 512
"""Approximate memory of a request in progress, in bytes, in addition to that of its frame."""
PARSED_COPIES = 8
"""Ratio of the memory of a decoded frame to its bytes, except for PRODUCE: each small item becomes an object."""
_PRODUCE: Final = int(Type.PRODUCE)


def sizes(frames: Sequence[Frame | LargeFrame], came_bytes: int) -> tuple[int, int, int]:
    """Estimate the memory of each PRODUCE, of each other request, and of all requests that one receive completed.

    The estimate assumes that all frames have the average size: to measure each small frame would cost too much.
    Only the first frame can be larger than one receive.
    """
    if not frames:
        return 0, 0, 0
    each_bytes = came_bytes // len(frames)
    produces = [one[0] if type(one) is list else one.kind for one in frames].count(_PRODUCE)  # type: ignore[union-attr]
    parsed_bytes = min(each_bytes, RECEIVE_BYTES) if produces else each_bytes
    produce_bytes, other_bytes = each_bytes + REQUEST_BYTES, parsed_bytes * PARSED_COPIES + REQUEST_BYTES
    return produce_bytes, other_bytes, produces * produce_bytes + (len(frames) - produces) * other_bytes
