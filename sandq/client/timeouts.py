"""`timeout=` of single calls: how long their caller waits."""

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


def seconds_of(what: str, duration: Duration) -> float:
    """How many seconds a timeout is. InvalidRequest unless it is one."""
    seconds = duration_ms(duration) / 1000
    if not seconds:
        raise InvalidRequest(f"{what}: it must be longer than nothing")
    return seconds


def check_timeout(timeout: Duration | None) -> None:
    """InvalidRequest unless it is a timeout, or None: for who uses it later."""
    if timeout is not None:
        seconds_of("timeout", timeout)


def timed_read(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have the argument `timeout` of an async method bound how long it may take. What it does changes nothing."""
    return _timed(method, "")


def timed_change(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same of a method that changes something, of which it is unknown then whether it is done."""
    return _timed(method, "; the outcome is unknown: it may be done, now or in a moment")


def within(work: Callable[P, Awaitable[T]], timeout: Duration | None, what: str) -> Callable[P, Awaitable[T]]:
    """What waits for a page of rows, so long at most; None: as it is. What was not waited for is asked for again by the
    next step of the iterator."""
    if timeout is None:
        return work
    timeout_s = seconds_of("timeout", timeout)

    async def bounded(*args: P.args, **kwargs: P.kwargs) -> T:
        with anyio.move_on_after(timeout_s):
            return await work(*args, **kwargs)
        raise TimedOut(f"{what}: no answer in {timeout_s:g} s")

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
