"""Let other threads use a client, through a mailbox that its event loop empties.

    thread --post(job)--> box --one wake-up--> pump (a task of the loop): job(), job(), ...
    thread --call(f)----> box -------------------> a task: await f() --future--> thread

What one thread leaves in the box is done in that order, so a call comes after what was posted before it. A wake-up is
asked for only when none is under way: many posts cost one. (anyio's BlockingPortal waits for the loop twice a call and
cannot post without waiting: 79 us a call against 63 us, and 0.2 us a post.)

The two halves know of each other in one direction only: threads hold the `Portal`, the loop holds the `Pump`. So a
client that was forgotten by its threads is collected, and a forked child, which has no loop, is told so by the portal.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from sandq.client.signals import Signal
from sandq.model.errors import ClosedError, ForkedError, InvalidRequest, TimedOut
from sandq.model.times import Duration, duration_ms

log = logging.getLogger("sandq.client")

T = TypeVar("T")

Job = Callable[[], object]


class Pump:
    """The loop's half; made in the event loop that is to be reached, and served there by `run`."""

    def __init__(self) -> None:
        native: Any = anyio.lowlevel.current_token().native_token
        self._soon: Callable[[Job], object] = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        self._box: deque[Job] = deque()
        self.calls: dict[Call[Any], None] = {}  # whose callers wait
        self._wake = Signal()
        self._armed = False
        self._stopping = False
        self.stopped = False
        self.ended = anyio.Event()  # the same, for the loop
        self.thread_id = threading.get_ident()
        self.tasks: anyio.abc.TaskGroup

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Do what is put into the box, until `stop`; what is under way then is cancelled."""
        try:
            async with anyio.create_task_group() as self.tasks:
                task_status.started()
                self.empty()
                while not self._stopping:
                    await self._wake.wait()
                    self.empty()
                self.tasks.cancel_scope.cancel()
        finally:
            self.stopped = True
            self.ended.set()
            self._box.clear()
            for call in list(self.calls):  # also those that were not begun
                call.future.cancel()

    def empty(self) -> None:
        """Do now what is in the box. Of the loop's thread."""
        self._armed = False
        box = self._box
        while box:
            job = box.popleft()
            try:
                job()
            except Exception:
                log.exception("a bug of sandq: %r failed", job)

    def stop(self) -> None:
        """Ask `run` to end. Of any thread; nothing happens when it has ended."""

        def stop() -> None:
            self._stopping = True

        self.put(stop)

    def put(self, job: Job) -> bool:
        """Put something into the box, of any thread; whether there still is a loop to do it."""
        self._box.append(job)
        if not self._armed:
            self._armed = True
            self.soon(self._wake.set)
        return not self.stopped

    def soon(self, job: Job) -> None:
        """Have the loop do something outside of any task, of any thread; nothing happens when the loop has ended."""
        try:
            self._soon(job)
        except RuntimeError:
            self.stopped = True

    def begin(self, call: Call[Any]) -> None:
        """Have a call run as a task of its own."""
        if not call.future.cancelled():
            call.context.run(self.tasks.start_soon, call.run)


class Call(Generic[T]):
    """One call of a thread into the loop."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        # What the caller is in, a span say, the task is in as well.
        self.context = contextvars.copy_context()
        self.future: Future[T] = Future()
        self.ended = threading.Event()
        self._function = function
        self._scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        # Nothing may leave the task: SystemExit and its like would end the loop under everybody's feet.
        try:
            with anyio.CancelScope() as self._scope:
                if self.future.cancelled():
                    self._scope.cancel()
                result = await self._function()
                self._finish(lambda: self.future.set_result(result))
        except anyio.get_cancelled_exc_class():
            self.future.cancel()
            raise
        except BaseException as error:
            problem = error
            self._finish(lambda: self.future.set_exception(problem))
        finally:
            self.future.cancel()  # unless it is done
            self.ended.set()

    def _finish(self, finish: Callable[[], None]) -> None:
        if self.future.set_running_or_notify_cancel():
            finish()

    def cancel(self) -> None:
        """The caller has gone. Of the loop's thread."""
        if self._scope is not None:
            self._scope.cancel()


class Portal:
    """The threads' half: any number of them may use it. `owner` says what is used ("the client"), for errors."""

    def __init__(self, pump: Pump, owner: str = "the client") -> None:
        self._pump = pump
        self._owner = owner
        self._pid = os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be called any more."""
        return self._pump.stopped or self.is_foreign

    @property
    def is_foreign(self) -> bool:
        """Whether this is another process than the one that it was made in."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """ForkedError in a process that was forked off; ClosedError when it is closed."""
        if os.getpid() != self._pid:
            raise ForkedError(f"{self._owner} was made in another process (pid {self._pid}); make one after the fork")
        if self._pump.stopped:
            raise ClosedError(f"{self._owner} is closed")

    def post(self, job: Job) -> None:
        """Have the loop do something soon, without waiting; the job must not raise. Raises as `check`."""
        if os.getpid() != self._pid or not self._pump.put(job):
            self.check()

    def call(self, function: Callable[[], Awaitable[T]], *, patience_s: float = 0.0) -> T:
        """Wait for an async function, run in the loop; what it raises.

        When the wait is interrupted (Ctrl-C, a signal handler that raises) the function is cancelled; this waits for
        its end for `patience_s` at most, and raises the interruption. ClosedError: the client was closed meanwhile.
        """
        pump = self._pump
        if threading.get_ident() == pump.thread_id and os.getpid() == self._pid:
            raise InvalidRequest(
                f"{self._owner} cannot be waited for in its own event loop's thread (a `progress` function, or an "
                f"async handler, is called there)"
            )
        self.check()
        call = Call(function)
        pump.calls[call] = None
        try:
            self.post(lambda: pump.begin(call))
            if pump.stopped:  # it may have been too late for the pump to see this call
                call.future.cancel()
            return call.future.result()
        except CancelledError:
            raise ClosedError(f"{self._owner} was closed meanwhile") from None
        except BaseException:
            if call.future.cancel():  # it was the wait that was interrupted
                self.post(call.cancel)
                call.ended.wait(patience_s)
            raise
        finally:
            pump.calls.pop(call, None)

    def do(self, function: Callable[[], T]) -> T:
        """Wait for a function that does not wait, run in the loop."""

        async def run() -> T:
            return function()

        return self.call(run)


class Confirmation(Generic[T]):
    """What `ack`, `nack` and `extend` return: nothing to do, or `wait()` to know that the broker did it."""

    __slots__ = ("_begin", "_error", "_inner", "_portal")

    def __init__(self, portal: Portal, begin: Callable[[], Awaitable[T]]) -> None:
        self._portal = portal
        self._begin = begin
        self._inner: Awaitable[T] | None = None
        self._error: Exception | None = None
        portal.post(self._do)

    def wait(self, timeout: Duration | None = None) -> T:
        """Until the broker has answered. LeaseLost: it was not held any more. TimedOut: no answer in `timeout`."""
        return self._portal.call(lambda: bounded(self._result, timeout))

    def _do(self) -> None:
        try:
            self._inner = self._begin()
        except Exception as error:
            self._error = error
            log.warning("%s", error)

    async def _result(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return await self._inner


async def bounded(function: Callable[[], Awaitable[T]], limit: Duration | None) -> T:
    """What a function gives; TimedOut when that takes longer."""
    if limit is None:
        return await function()
    with anyio.move_on_after(duration_ms(limit) / 1000):
        return await function()
    raise TimedOut(f"no answer in {duration_ms(limit) / 1000:g} s; the outcome is unknown")
