"""The argument `timeout=` of single calls: how long the caller waits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import anyio

from sandq.model.errors import InvalidRequest, TimedOut
from sandq.model.times import Duration, duration_ms

P = ParamSpec("P")
T = TypeVar("T")


def seconds_of(name: str, duration: Duration) -> float:
    """Return a timeout in seconds. Raises InvalidRequest if the timeout is not valid."""
    seconds = duration_ms(duration) / 1000
    if not seconds:
        raise InvalidRequest(f"{name}: it must be greater than 0")
    return seconds


def check_timeout(timeout: Duration | None) -> None:
    """Raise InvalidRequest unless `timeout` is a valid timeout or None. For callers that use the timeout later."""
    if timeout is not None:
        seconds_of("timeout", timeout)


def timed_read(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an async method that changes nothing: its argument `timeout` limits how long it may take."""
    return _timed(method, "")


def timed_change(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an async method that changes something, like `timed_read`; after a timeout its outcome is unknown."""
    return _timed(method, "; the outcome is unknown: it may be done, now or in a moment")


def within(work: Callable[P, Awaitable[T]], timeout: Duration | None, name: str) -> Callable[P, Awaitable[T]]:
    """Limit how long reading a page of rows may take; None: no limit.

    After a timeout, the next step of the iterator requests the page again.
    """
    if timeout is None:
        return work
    timeout_s = seconds_of("timeout", timeout)

    async def bounded(*args: P.args, **kwargs: P.kwargs) -> T:
        with anyio.move_on_after(timeout_s):
            return await work(*args, **kwargs)
        raise TimedOut(f"{name}: no answer in {timeout_s:g} s")

    return bounded


def _timed(method: Callable[P, Awaitable[T]], outcome: str) -> Callable[P, Coroutine[Any, Any, T]]:
    assert "timeout" in inspect.signature(method).parameters

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        timeout: Any = kwargs.get("timeout")
        if timeout is None:
            return await method(*args, **kwargs)
        timeout_s = seconds_of("timeout", timeout)
        with anyio.move_on_after(timeout_s):
            return await method(*args, **kwargs)
        raise TimedOut(f"{method.__name__}: no answer in {timeout_s:g} s{outcome}")

    return call
