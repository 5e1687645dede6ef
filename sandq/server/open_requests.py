"""The requests of one connection that are not answered yet: for whom they are, what does them, and their answers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import structlog
import trio

from sandq.broker import verbose
from sandq.broker.event_loop import Turn
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.peers.metadata_barrier import Unsure
from sandq.model.caller import Caller
from sandq.model.errors import Overloaded, SandqError, TimedOut, let_go
from sandq.model.limits import Limits
from sandq.protocol.frames import encode_error
from sandq.server.audit.requests import RequestAudit
from sandq.server.caller_requests import BEGUN_WORK, CallerRequests, asking
from sandq.server.client_stats import OURS, ClientStats, Mark
from sandq.server.output import Answer, Output

REFUSAL_WORK = 16
"""Of an answer that says why not."""
CALLERS: Final = 4096
"""On whose behalf a gateway may have requests under way at a time; those of more are its own."""


class OpenRequests:
    """Those of one connection. Nothing awaits per request."""

    def __init__(
        self,
        own: CallerRequests,
        output: Output,
        memory: MemoryBudget,
        limits: Limits,
        stats: ClientStats,
        turn: Turn,
        timeout_s: float,
    ) -> None:
        """`own`: what the client asks for itself. `turn`: of the connection. `timeout_s`: for a request that takes a
        while, beyond what it asks to wait."""
        self.marks: dict[int, Mark] = {}
        """By request id."""
        self.own = own
        self.nursery: trio.Nursery
        """Where requests run that take a while; set once the connection runs."""
        self.add_hint: Callable[[SandqError], None] = lambda error: None
        """Adds to an error what its receiver may want to know; set by the session."""
        self.audit = RequestAudit(None)
        """Told what becomes of requests; set by the session."""
        self._output = output
        self._memory = memory
        self._limits = limits
        self._stats = stats
        self._turn = turn
        self._timeout_s = timeout_s
        self._callers: WeakValueDictionary[Caller, CallerRequests] = WeakValueDictionary()
        """Those on whose behalf a gateway has requests under way, and the last one."""
        self._listening: dict[trio.CancelScope, None] = {}
        """Of requests that wait for something to happen."""

    def reply(self, request_id: int, frame: Answer) -> None:
        """Answer a request."""
        mark = self.marks.pop(request_id, None)
        if self.audit.acts:
            self.audit.answered(request_id)
        if mark is not None:
            mark.durations.observe(time.perf_counter() - mark.came_s)
            mark.counted.count(-mark.size)
        if verbose.is_on():
            tell_answered(self.own, [request_id], [mark])
        self._output.send(frame)

    def reply_each(self, request_ids: Sequence[int], frames: Answer) -> None:
        """Answer several requests."""
        now_s, own, answered_bytes = time.perf_counter(), self.own, 0
        pop = self.marks.pop
        if self.audit.acts:
            for request_id in request_ids:
                self.audit.answered(request_id)
        marks = [pop(request_id, None) for request_id in request_ids]
        if verbose.is_on():
            tell_answered(self.own, request_ids, marks)
        mark = marks[0] if marks else None
        if mark is not None and marks.count(mark) == len(marks):  # they came together
            mark.durations.observe(now_s - mark.came_s, len(marks))
            mark.counted.count(-mark.size * len(marks))
            self._output.send(frames)
            return
        for mark in marks:
            if mark is not None:
                mark.durations.observe(now_s - mark.came_s)
                if mark.counted is own:
                    answered_bytes += mark.size
                else:
                    mark.counted.count(-mark.size)
        own.count(-answered_bytes)
        self._output.send(frames)

    def send_error(self, request_id: int, error: SandqError) -> None:
        """Answer a request that failed; 0: tell what ends the connection."""
        mark = self.marks.pop(request_id, None)
        if mark is not None:
            mark.durations.observe(time.perf_counter() - mark.came_s)
            self._stats.failures[mark.request, error.code] += 1
            mark.counted.count(-mark.size)
        elif not request_id:
            self._stats.errors[error.code] += 1
        self._turn.left -= REFUSAL_WORK
        self._tell(request_id, mark, error)
        asks = self.own if mark is None else mark.asks
        self.audit.failed(request_id, "connection" if mark is None else mark.request, asks.caller, error)
        self.add_hint(error)
        self._output.send(encode_error(request_id, error))
        let_go(error)

    def _tell(self, request_id: int, mark: Mark | None, error: SandqError) -> None:
        """To the log: what is our fault to everybody, the rest to who looks for it."""
        told = {
            "request_id": request_id or None,
            "request": mark.request if mark is not None else None,
            "topic": error.details.get("topic"),
            "code": error.code,
            "error": error.message,
        }
        fields = {name: value for name, value in told.items() if value is not None}
        about = (self.own if mark is None else mark.asks).log
        if error.code not in OURS:
            about.debug("a request was refused", **fields)
        elif (held_back := self._stats.warnings.held_back()) is not None:
            about.warning("a request failed", **fields, not_logged_before=held_back)

    @property
    def current(self) -> CallerRequests:
        """The requests of the caller for whom this task works."""
        asks, own = asking.get(self.own), self.own
        # A task that was begun for another connection may do something for this one.
        return asks if asks is own or self._callers.get(asks.caller) is asks else own

    @property
    def caller(self) -> Caller:
        """Who asks for what this task works on."""
        return self.current.caller

    def ask_for(self, caller: Caller | None) -> None:
        """What follows is asked on behalf of a caller; None: for this connection itself. For who reads it."""
        own = self.own
        asks = own if caller is None else self._callers.get(caller)
        if caller is not None and asks is None and (len(self._callers) < CALLERS or caller.access is not None):
            about = own.log.bind(principal=caller.principal, peer=caller.address, gateway=own.caller.address)
            asks = CallerRequests(caller, self._memory, self._limits, about, has_connection=False)
            self._callers[caller] = asks
        elif caller is not None and asks is not None:
            asks.caller = caller  # it may do something else by now
        asking.set(asks or own)
        # Of what is logged by the tasks that are begun for it.
        structlog.contextvars.bind_contextvars(principal=self.caller.principal, peer=self.caller.address)
        if asks is None or asks is own:
            structlog.contextvars.unbind_contextvars("gateway")
        else:
            structlog.contextvars.bind_contextvars(gateway=own.caller.address)

    def waits(self, size: int) -> AbstractContextManager[None]:
        """Count a request that waits for something to happen, and what it takes beyond `WAITING_BYTES`. Raises
        Overloaded."""
        return self.current.waits(size)

    def start(self, request_id: int, work: Callable[[], Awaitable[Answer]], wait_s: float = 0.0) -> None:
        """Run a request that takes a while; what it returns is the reply. `wait_s`: for so long it asks to wait. Raises
        Overloaded when as many wait as may, or as `start_many` does."""
        if not wait_s:
            self.start_many([request_id], work)
            return
        asks, scope = self.current, trio.CancelScope()
        asks.listen()
        self._listening[scope] = None
        self.nursery.start_soon(self._listen, scope, asks, self._begun(asks, [request_id], work, wait_s))

    def start_many(self, request_ids: Sequence[int], work: Callable[[], Awaitable[Answer]]) -> None:
        """Run requests that are done together; what it returns are their replies, one behind the other. Raises
        Overloaded when a gateway's caller has as many under way as may be."""
        asks = self.current
        asks.begin(len(request_ids))
        asks.do(len(request_ids), self._begun(asks, request_ids, work), self.nursery)

    def _begun(
        self,
        asks: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        wait_s: float = 0.0,
    ) -> Callable[[], Awaitable[None]]:
        """What answers requests within the time that they have from now on."""
        self._turn.left -= BEGUN_WORK
        timeout_s = self._timeout_s + wait_s
        return partial(self._work, asks, request_ids, work, timeout_s, trio.current_time() + timeout_s)

    async def _listen(self, scope: trio.CancelScope, asks: CallerRequests, done: Callable[[], Awaitable[None]]) -> None:
        with scope:
            try:
                await done()
            finally:
                del self._listening[scope]
                asks.listening -= 1

    async def end_listening(self) -> None:
        """End what waits for something to happen, in turns: all at once would be a long one."""
        turn = Turn()
        for scope in list(self._listening):
            scope.cancel()
            await turn.spend(BEGUN_WORK)

    async def _work(
        self,
        asks: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        timeout_s: float,
        deadline_s: float,
    ) -> None:
        if not self._output.is_open:
            return  # it was to come after others, and nobody waits for it any more
        failure: SandqError = TimedOut(f"not done within {timeout_s:g} s: the outcome is unknown")
        with trio.move_on_at(deadline_s) as within:
            try:
                self.reply_each(request_ids, await work())
            except SandqError as error:
                failure = error
                failure = await error.settled() if isinstance(error, Unsure) else error
            else:
                return
        if within.cancelled_caught:
            asks.log.warning("a request took too long", requests=len(request_ids), timeout_s=timeout_s)
        for request_id in request_ids:
            self.send_error(request_id, failure)

    def refuse(self, request_id: int, refusal: SandqError) -> None:
        """Answer a request that failed, once it is certain how."""

        async def work() -> bytes:
            raise refusal

        if isinstance(refusal, Unsure):
            with suppress(Overloaded):  # then it is answered as it is: to be asked again
                self.start(request_id, work)
                return
        self.send_error(request_id, refusal)

    def clear(self) -> None:
        """The connection has ended: nobody waits for the answers."""
        self.audit.end()
        for asks in (self.own, *self._callers.values()):
            asks.clear()
        self.marks.clear()


def tell_answered(own: CallerRequests, request_ids: Sequence[int], marks: Sequence[Mark | None]) -> None:
    """Log requests that were answered; `marks`, of each, says which kind it was."""
    for request_id, mark in zip(request_ids, marks, strict=True):
        if mark is not None:
            own.log.debug("a request is answered", request=mark.request, request_id=request_id)
