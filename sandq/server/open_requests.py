"""The unanswered requests of one connection: their callers, the tasks that work on them, and their replies."""

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
from sandq.broker.event_loop import TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.peers.metadata_barrier import Unsure
from sandq.model.caller import Caller
from sandq.model.errors import Overloaded, SandqError, TimedOut, clear_tracebacks
from sandq.model.limits import Limits
from sandq.protocol.frames import encode_error
from sandq.server.audit.requests import RequestAudit
from sandq.server.caller_requests import BEGUN_WORK, CallerRequests, asking
from sandq.server.client_stats import OURS, ClientStats, Mark
from sandq.server.output import Answer, Output

REFUSAL_WORK = 16
"""Units of work of an error reply."""
CALLERS: Final = 4096
"""Maximum number of callers for whom a gateway may have requests in progress at a time.

Requests of further callers count as the gateway's own."""


class OpenRequests:
    """The unanswered requests of one connection. No task waits per request."""

    def __init__(
        self,
        own: CallerRequests,
        output: Output,
        memory: MemoryBudget,
        limits: Limits,
        stats: ClientStats,
        time_slice: TimeSlice,
        timeout_s: float,
    ) -> None:
        """Create the table of one connection.

        `own`: requests that the client sends for itself. `turn`: the time slice of the connection. `timeout_s`: limit
        of a request that takes a while, in addition to the time that it asks to wait."""
        self.marks: dict[int, Mark] = {}
        """The mark of each unanswered request, by request id."""
        self.own = own
        self.nursery: trio.Nursery
        """Runs the tasks of requests that take a while. Set once the connection runs."""
        self.add_hint: Callable[[SandqError], None] = lambda error: None
        """Adds details for the client to an error. Set by the session."""
        self.audit = RequestAudit(None)
        """Records the outcome of requests. Set by the session."""
        self._output = output
        self._memory = memory
        self._limits = limits
        self._stats = stats
        self._time_slice = time_slice
        self._timeout_s = timeout_s
        self._callers: WeakValueDictionary[Caller, CallerRequests] = WeakValueDictionary()
        """The requests of each caller for whom a gateway has requests in progress, and of the last such caller."""
        self._listening: dict[trio.CancelScope, None] = {}
        """Cancel scopes of requests that wait for an event."""

    def reply(self, request_id: int, frame: Answer) -> None:
        """Send the reply of a request."""
        mark = self.marks.pop(request_id, None)
        if self.audit.acts:
            self.audit.answered(request_id)
        if mark is not None:
            mark.durations.observe(time.perf_counter() - mark.received_s)
            mark.counted.count(-mark.size)
        if verbose.is_on():
            log_answered(self.own, [request_id], [mark])
        self._output.send(frame)

    def reply_each(self, request_ids: Sequence[int], frames: Answer) -> None:
        """Send the replies of several requests."""
        now_s, own, answered_bytes = time.perf_counter(), self.own, 0
        pop = self.marks.pop
        if self.audit.acts:
            for request_id in request_ids:
                self.audit.answered(request_id)
        marks = [pop(request_id, None) for request_id in request_ids]
        if verbose.is_on():
            log_answered(self.own, request_ids, marks)
        mark = marks[0] if marks else None
        if mark is not None and marks.count(mark) == len(marks):  # the common case: all came together
            mark.durations.observe(now_s - mark.received_s, len(marks))
            mark.counted.count(-mark.size * len(marks))
            self._output.send(frames)
            return
        for mark in marks:
            if mark is not None:
                mark.durations.observe(now_s - mark.received_s)
                if mark.counted is own:
                    answered_bytes += mark.size
                else:
                    mark.counted.count(-mark.size)
        own.count(-answered_bytes)
        self._output.send(frames)

    def send_error(self, request_id: int, error: SandqError) -> None:
        """Send the error of a failed request. Request id 0: the error that ends the connection."""
        mark = self.marks.pop(request_id, None)
        if mark is not None:
            mark.durations.observe(time.perf_counter() - mark.received_s)
            self._stats.failures[mark.request, error.code] += 1
            mark.counted.count(-mark.size)
        elif not request_id:
            self._stats.errors[error.code] += 1
        self._time_slice.left -= REFUSAL_WORK
        self._log_failure(request_id, mark, error)
        sender = self.own if mark is None else mark.sender
        self.audit.failed(request_id, "connection" if mark is None else mark.request, sender.caller, error)
        self.add_hint(error)
        self._output.send(encode_error(request_id, error))
        clear_tracebacks(error)

    def _log_failure(self, request_id: int, mark: Mark | None, error: SandqError) -> None:
        """Log a failure: faults of this node as rate-limited warnings, mistakes of clients at debug level."""
        values = {
            "request_id": request_id or None,
            "request": mark.request if mark is not None else None,
            "topic": error.details.get("topic"),
            "code": error.code,
            "error": error.message,
        }
        fields = {name: value for name, value in values.items() if value is not None}
        request_log = (self.own if mark is None else mark.sender).log
        if error.code not in OURS:
            request_log.debug("a request was refused", **fields)
        elif (held_back := self._stats.warnings.held_back()) is not None:
            request_log.warning("a request failed", **fields, not_logged_before=held_back)

    @property
    def current(self) -> CallerRequests:
        """The requests of the caller for whom the current task works."""
        sender, own = asking.get(self.own), self.own
        # A task of another connection may send something on this one. Its context variable belongs to that connection.
        return sender if sender is own or self._callers.get(sender.caller) is sender else own

    @property
    def caller(self) -> Caller:
        """Caller for whom the current task works."""
        return self.current.caller

    def set_caller(self, caller: Caller | None) -> None:
        """Set the caller of the requests that follow; None: the connection itself. Call from the reader task only."""
        own = self.own
        sender = own if caller is None else self._callers.get(caller)
        if caller is not None and sender is None and (len(self._callers) < CALLERS or caller.access is not None):
            request_log = own.log.bind(principal=caller.principal, peer=caller.address, gateway=own.caller.address)
            sender = CallerRequests(caller, self._memory, self._limits, request_log, has_connection=False)
            self._callers[caller] = sender
        elif caller is not None and sender is not None:
            sender.caller = caller  # its rights may have changed
        asking.set(sender or own)
        # Tasks that are started for this caller inherit this value, too.
        structlog.contextvars.bind_contextvars(principal=self.caller.principal, peer=self.caller.address)
        if sender is None or sender is own:
            structlog.contextvars.unbind_contextvars("gateway")
        else:
            structlog.contextvars.bind_contextvars(gateway=own.caller.address)

    def waits(self, size: int) -> AbstractContextManager[None]:
        """Count a request that waits for an event, and the memory that it holds: `WAITING_BYTES` and `size` bytes.

        Raise Overloaded."""
        return self.current.waits(size)

    def start(self, request_id: int, work: Callable[[], Awaitable[Answer]], wait_s: float = 0.0) -> None:
        """Run a request in a task, because it takes a while; `work` returns the reply. `wait_s`: how long the request
        asks to wait.

        Raise Overloaded if too many requests wait, or as `start_many` does."""
        if not wait_s:
            self.start_many([request_id], work)
            return
        sender, scope = self.current, trio.CancelScope()
        sender.listen()
        self._listening[scope] = None
        self.nursery.start_soon(self._listen, scope, sender, self._begun(sender, [request_id], work, wait_s))

    def start_many(self, request_ids: Sequence[int], work: Callable[[], Awaitable[Answer]]) -> None:
        """Run requests that are done together; `work` returns their replies, one after the other.

        Raise Overloaded if the caller of a gateway has too many requests in progress."""
        sender = self.current
        sender.begin(len(request_ids))
        sender.do(len(request_ids), self._begun(sender, request_ids, work), self.nursery)

    def _begun(
        self,
        sender: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        wait_s: float = 0.0,
    ) -> Callable[[], Awaitable[None]]:
        """Return a function that does the work and answers the requests. Their timeout begins now."""
        self._time_slice.left -= BEGUN_WORK
        timeout_s = self._timeout_s + wait_s
        return partial(self._work, sender, request_ids, work, timeout_s, trio.current_time() + timeout_s)

    async def _listen(
        self, scope: trio.CancelScope, sender: CallerRequests, done: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a request that waits for an event, until it is done or `scope` is cancelled."""
        with scope:
            try:
                await done()
            finally:
                del self._listening[scope]
                sender.listening -= 1

    async def end_listening(self) -> None:
        """Cancel the requests that wait for an event, in time slices, because there may be many."""
        time_slice = TimeSlice()
        for scope in list(self._listening):
            scope.cancel()
            await time_slice.spend(BEGUN_WORK)

    async def _work(
        self,
        sender: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        timeout_s: float,
        deadline_s: float,
    ) -> None:
        """Run `work` and send its replies. If it fails or takes too long, send an error to each of the requests.

        An `Unsure` error means that the outcome is not known yet: wait until it is settled."""
        if not self._output.is_open:
            return  # the connection has ended while the request was queued
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
            sender.log.warning("a request took too long", requests=len(request_ids), timeout_s=timeout_s)
        for request_id in request_ids:
            self.send_error(request_id, failure)

    def refuse(self, request_id: int, refusal: SandqError) -> None:
        """Answer a failed request. If the error is `Unsure`, wait until the outcome is certain."""

        async def work() -> bytes:
            """Raise the refusal, in the task of the request."""
            raise refusal

        if isinstance(refusal, Unsure):
            with suppress(Overloaded):  # then send the uncertain error, which asks the client to retry
                self.start(request_id, work)
                return
        self.send_error(request_id, refusal)

    def clear(self) -> None:
        """Release everything: the connection has ended, so no replies are needed."""
        self.audit.end()
        for sender in (self.own, *self._callers.values()):
            sender.clear()
        self.marks.clear()


def log_answered(own: CallerRequests, request_ids: Sequence[int], marks: Sequence[Mark | None]) -> None:
    """Log at debug level that requests were answered. `marks`: the mark of each."""
    for request_id, mark in zip(request_ids, marks, strict=True):
        if mark is not None:
            own.log.debug("a request is answered", request=mark.request, request_id=request_id)
