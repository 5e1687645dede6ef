"""`client.run`: call a handler for each message with a fixed number of workers, and settle by the handler's outcome.

    returned                     acked            raised Retry     nacked, with the delay that it names
    settled the message itself   left alone       raised Dead      dead at once, with the error that it names
    took too long                nacked           raised another   decided by `EndRules`; logged with its traceback

Workers are tasks that pull from one subscription; there is no task per message. Idle workers queue up, so that a
message wakes only one of them. Each worker has its own cancel scope, shielded from cancellation of `run`. At the end,
idle workers are cancelled immediately, busy workers when the grace time is over.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NoReturn

import anyio
import anyio.to_thread

from sandq.client.consumer.end_rules import DEFAULT_RULES, EndRules, Rule, failure_text
from sandq.client.consumer.message import Message
from sandq.client.consumer.subscription import Subscription
from sandq.client.consumer.threaded import Message as ThreadedMessage
from sandq.client.portal import Portal, Pump
from sandq.client.tracing import processing
from sandq.model.errors import InvalidRequest, SandqError
from sandq.model.limits import FIXED
from sandq.model.times import Duration, duration_ms, format_duration

log = logging.getLogger("sandq.client")

ThreadHandler = Callable[[ThreadedMessage], object]
"""A plain function. It is called in a worker thread, with a message that can be settled in that thread."""
Handler = Callable[[Message], Awaitable[object]] | ThreadHandler
"""An async function, or a plain function."""

CONCURRENCY: Final = 10
CONCURRENCY_MAX: Final = FIXED.handlers
GRACE: Final = "30s"


class Runner:
    """One call of `client.run`."""

    def __init__(
        self,
        subscription: Subscription,
        handler: Handler,
        concurrency: int,
        grace: Duration,
        rules: EndRules = DEFAULT_RULES,
        timeout_s: float | None = None,
    ) -> None:
        """`timeout_s`: how long the handler may work on a message, in seconds; None for no limit."""
        self._subscription = subscription
        self._tracing = subscription.options.tracing
        self._rules = rules
        self._timeout_s = timeout_s
        self._handler: Callable[[Any], Any] = handler
        self._concurrency = concurrency
        self._grace_s = duration_ms(grace) / 1000
        self._next_lock = anyio.Lock(fast_acquire=True)  # held by the worker that waits for the next message
        self._workers: dict[anyio.CancelScope, Message | None] = {}  # the message that each worker handles
        self._stopping = False
        self._failed = anyio.Event()
        self._failure: BaseException | None = None
        self._threads = None if is_async(handler) else _Threads(concurrency)

    async def run(self) -> NoReturn:
        """Run until cancelled, or until a permanent failure. The failure is raised after the grace time of the running
        handlers."""
        async with self._subscription, anyio.create_task_group() as others:
            if self._threads is not None:
                others.start_soon(self._threads.serve)
            try:
                async with anyio.create_task_group() as tasks:
                    for _ in range(self._concurrency):
                        tasks.start_soon(self._work)
                    await self._wait()
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(self._subscription.options.close_timeout_s):
                    await self._subscription.flush()
                if self._threads is not None:
                    self._threads.pump.stop()
        assert self._failure is not None
        raise self._failure

    async def _wait(self) -> None:
        """Wait for a reason to stop. After that, no more handlers are started, and running handlers get the grace
        time."""
        try:
            await self._failed.wait()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # Ctrl-C under trio: raise the error itself, without an exception group
            self._fail(error)
        finally:
            self._stopping = True
            self._subscription.stop()
            deadline = anyio.current_time() + self._grace_s
            for scope, message in self._workers.items():
                if message is None:
                    scope.cancel()
                else:
                    scope.deadline = deadline

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._failed.set()

    async def _work(self) -> None:
        with anyio.CancelScope(shield=True) as scope:
            self._workers[scope] = None
            try:
                while not self._stopping:
                    message = self._subscription.take_ready()
                    if message is None:
                        async with self._next_lock:
                            message = await self._subscription.__anext__()
                    self._workers[scope] = message
                    await self._handle(message, scope)
                    self._workers[scope] = None
            except BaseException as error:
                cancelled, failure = _split(error)
                if failure is not None:
                    self._fail(failure)
                if cancelled is not None:
                    raise
            finally:
                del self._workers[scope]

    async def _handle(self, message: Message, scope: anyio.CancelScope) -> None:
        """Call the handler and settle the message. Raises errors that end the worker."""
        limit = anyio.CancelScope()
        try:
            if self._timeout_s is None:
                await self._call(message)
            elif self._threads is None:
                await self._call_within(message, limit, self._timeout_s)
            else:
                await self._threads.within(self._timeout_s, partial(self._time_out, message), self._call, message)
        except GeneratorExit:
            raise  # the event loop is being torn down
        except (KeyboardInterrupt, _NotAHandler):
            raise  # not the message's fault: the message is given back
        except BaseException as error:
            cancelled, failure = _split(error)
            if cancelled is not None and (scope.cancel_called or _is_task_cancelled()):
                if failure is not None:
                    self._failed_on(message, failure)
                else:
                    outcome = "" if message.is_settled else ": given back"
                    log.warning("%s did not end in %g s and was cancelled%s", _of(message), self._grace_s, outcome)
                raise cancelled from None
            if limit.cancel_called and isinstance(failure, Exception) and not self._rules.rule(failure).is_expected:
                # the cancellation caused the error, so the message is not at fault
                self._time_out(message, failure)
                return
            # The cancellation does not come from this runner: the handler awaited something that was cancelled.
            self._failed_on(message, error)
            if not isinstance(error, Exception) and cancelled is None:
                raise
        else:
            self._done_with(message)

    async def _call(self, message: Message) -> None:
        with processing(self._tracing, message, self._subscription.group):
            if self._threads is None:
                _check_has_run(self._handler, await self._handler(message))
                self._warn_if_it_blocked(message)
            else:
                await self._threads.call(self._handler, message)

    async def _call_within(self, message: Message, limit: anyio.CancelScope, timeout_s: float) -> None:
        """Call an async handler, and cancel it after `timeout_s`."""
        limit.deadline = anyio.current_time() + timeout_s
        with limit, processing(self._tracing, message, self._subscription.group):
            _check_has_run(self._handler, await self._handler(message))
        self._warn_if_it_blocked(message)
        # also if the handler swallowed the cancellation: its work is incomplete, so the message is retried
        if limit.cancel_called:
            self._time_out(message)

    def _warn_if_it_blocked(self, message: Message) -> None:
        """Log a warning if an async handler blocked the event loop until its lease ended without an extension."""
        lease = message._piece.lease
        late_s = anyio.current_time() - lease.expires_at
        if lease.lost or message.is_settled or late_s < 0:
            return
        if lease.blocked if lease.lapsed else not lease.extending:
            log.warning(
                "%s blocked the event loop: its lease ended %.1f s ago and could not be extended, so the message is "
                "delivered again. Make %s a plain function, which runs in a thread, or await what it waits for",
                *(_of(message), late_s, _name_of(self._handler)),
            )

    def _time_out(self, message: Message, failure: Exception | None = None) -> None:
        """Nack a message whose handler took too long, unless the message is settled. `failure`: error that the
        cancelled handler raised."""
        assert self._timeout_s is not None
        error = f"took longer than {format_duration(round(self._timeout_s * 1000))}"
        if failure is not None:
            error = f"{error}, and then: {failure_text(failure)}"
        ended = "was cancelled" if self._threads is None else "goes on in its thread, which cannot be cancelled"
        log.error("%s %s: it %s", _of(message), error, ended, exc_info=failure)
        if not (message.is_settled or message.is_lost):
            self._settle(lambda: message.nack(error=error))

    def _done_with(self, message: Message) -> None:
        if message.is_settled:
            return
        if message.is_lost:
            log.warning("%s came too late: the lease was lost, so the message is handled again", _of(message))
            return
        self._settle(message.ack)

    def _failed_on(self, message: Message, error: BaseException) -> None:
        rule = self._rules.rule(error)
        if message.is_settled or message.is_lost:
            failure = None if rule.is_expected else error
            log.error("%s raised after its message was settled or lost: %s", _of(message), rule.error, exc_info=failure)
            return
        if not rule.is_expected:
            failed = "failed, and the message is dead" if rule.is_dead else "failed"
            log.error("%s %s: %s", _of(message), failed, rule.error, exc_info=error)
        elif rule.is_dead:
            log.warning("%s raised Dead: the message is dead: %s", _of(message), rule.error)
        else:
            log.info("%s raised Retry: the message is retried: %s", _of(message), rule.error)
        self._settle(partial(_end, message, rule))

    def _settle(self, settle: Callable[[], object]) -> None:
        try:
            settle()
        except SandqError as error:  # the client was closed: the iterator raises that, too
            log.warning("topic %s: %s", self._subscription.topic, error)


def _end(message: Message, rule: Rule) -> None:
    if rule.is_dead:
        message.dead(rule.error)
    else:
        message.nack(delay=rule.delay, error=rule.error, count=rule.counts)


class _NotAHandler(InvalidRequest):
    """The given handler cannot be used as one."""


class _Threads:
    """Calls plain functions in worker threads."""

    def __init__(self, concurrency: int) -> None:
        self.pump = Pump()
        self._portal = Portal(self.pump, "a message of client.run")
        self._limiter = anyio.CapacityLimiter(concurrency)

    async def serve(self) -> None:
        """Run the jobs that worker threads post for their messages, until the pump is stopped."""
        with anyio.CancelScope(shield=True):
            await self.pump.run()

    async def within(
        self,
        timeout_s: float,
        on_late: Callable[[], None],
        call: Callable[[Message], Awaitable[None]],
        message: Message,
    ) -> None:
        """Call a handler, and call `on_late` after `timeout_s`.

        The call is awaited to its end, because its thread counts against the limit on concurrent threads until then.
        """

        async def watch() -> None:
            await anyio.sleep(timeout_s)
            self.pump.empty()  # jobs in it may have settled the message
            on_late()

        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                await call(message)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error  # raised below, without an exception group
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def call(self, handler: Callable[[ThreadedMessage], object], message: Message) -> None:
        """Call a handler in a thread. A thread cannot be cancelled, so it continues after a cancellation."""
        threaded = ThreadedMessage(self._portal, message._piece, message._position, message.value)
        # The result is wrapped in a tuple, because trio rejects functions that return coroutines.
        (found,) = await anyio.to_thread.run_sync(
            lambda: (handler(threaded),), abandon_on_cancel=True, limiter=self._limiter
        )
        self.pump.empty()  # jobs in it may have settled the message
        _check_has_run(handler, found)


def _check_has_run(handler: Callable[[Any], object], found: object) -> None:
    """Raise _NotAHandler if a handler returned an object that has yet to run (a coroutine, a generator). Its message
    would be acked too early."""
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        kind = "a generator, whose lines run only when it is iterated over"
    elif inspect.isawaitable(found):
        kind = "something to be awaited"
    elif isinstance(found, Future) and not found.done():
        kind = "a future of work that has not ended"
    elif isinstance(found, map | filter):
        kind = f"a {type(found).__name__}, which calls its function only when it is iterated over"
    else:
        return
    if inspect.iscoroutine(found):
        found.close()  # else Python warns that it was never awaited
    raise _NotAHandler(f"handler: {handler!r} returned {kind}; call it in the handler, and wait until it has ended")


def check_options(handler: object, concurrency: object) -> None:
    """Raise InvalidRequest if the handler cannot be called with a message, or `concurrency` is invalid."""
    if not callable(handler):
        raise InvalidRequest(f"handler: a function that takes a message is expected, not {handler!r}")
    _check_signature(handler)
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object that is called like a function
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (handler, call)):
        raise InvalidRequest(
            f"handler: {_name_of(handler)} has a `yield`, so a call runs no code; use a function without it"
        )
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidRequest(f"concurrency: an int within 1..{CONCURRENCY_MAX} is expected, not {concurrency!r}")


def _check_signature(handler: Callable[..., object]) -> None:
    """Raise InvalidRequest unless the handler can be called with a message as its only argument. Accept unknown
    signatures."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidRequest(
            f"handler: {_name_of(handler)}{signature} cannot be called with one argument, the message: {error}"
        ) from None


def _name_of(handler: object) -> str:
    return getattr(handler, "__qualname__", None) or repr(handler)


def timeout_s_of(timeout: Duration | None) -> float | None:
    """Return how long a handler may work on a message, in seconds. Raises InvalidRequest."""
    if timeout is None:
        return None
    timeout_ms = duration_ms(timeout)
    if not timeout_ms:
        raise InvalidRequest("timeout: it must be greater than 0; None means no limit")
    return timeout_ms / 1000


def is_async(handler: object) -> bool:
    """Return whether a call of the handler returns an awaitable."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object that is called like a function
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _of(message: Message) -> str:
    return f"topic {message.topic}: the handler of message {message.id} (attempt {message.attempt})"


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split an exception into (cancellation, all other exceptions)."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        ended, rest = error.split(cancelled)
        return (None, error) if ended is None else (ended, rest)
    return (error, None) if isinstance(error, cancelled) else (None, error)


def _is_task_cancelled() -> bool:
    """Return whether asyncio itself is cancelling this task, as it does when the loop ends."""
    asyncio = sys.modules.get("asyncio")
    try:
        task = asyncio.current_task() if asyncio is not None else None
    except RuntimeError:  # trio
        return False
    return task is not None and bool(task.cancelling())
