"""Wait until a condition holds, instead of for a fixed time.

If the product or the test has an event (a future, a queue, a task that ends, a line on a pipe), await that event. These
helpers are for conditions that can only be polled: the state of a node in this process, the answer of a node in another
process, the end of a process. `PATIENCE_S` is not a promise of the product, and nothing may depend on it. It only makes
a test fail with a message instead of waiting for ever, and is long enough for a machine that stops for seconds."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import anyio

from sandq.client.client import Client
from sandq.errors import SandqError

PATIENCE_S = 240.0
_LOOK_S = 0.005
_SELDOM_S = 0.1
"""Longest pause between two checks, in seconds. The first pauses are shorter.

It applies to checks that use much CPU time of other processes, such as requests to a node."""

T = TypeVar("T")

_NOT_YET = (SandqError, LookupError)
"""Errors that mean that the condition does not hold yet: a new node does not know its topics and nodes."""


async def until_holds(check: Callable[[], object]) -> None:
    """Wait until `check()` is true, under trio or asyncio.

    If the time ends, raises AssertionError with the source of `check`, or the last error of `check()` if it was a
    `SandqError` or `LookupError`. Any other error of `check()` is raised at once."""
    with anyio.move_on_after(PATIENCE_S):
        while not _holds(check):  # noqa: ASYNC110 - the condition has no event
            await anyio.sleep(_LOOK_S)
        return
    assert check(), f"never held in {PATIENCE_S:g} s: {_source(check)}"


async def until_answer(
    ask: Callable[[], Awaitable[T]],
    right: Callable[[T], object] = lambda answer: True,
    *,
    despite: type[Exception] | tuple[type[Exception], ...] = SandqError,
) -> T:
    """Ask until the answer is right, and return it. Errors of the kinds `despite` cause another attempt.

    If no answer is right in time, raises AssertionError with the last answer or error."""
    last: object = None
    pauses_s = _pauses_s()
    with anyio.move_on_after(PATIENCE_S):
        while True:
            try:
                last = answer = await ask()
                if right(answer):
                    return answer
            except despite as error:
                last = error
            await anyio.sleep(next(pauses_s))
    raise AssertionError(f"not in {PATIENCE_S:g} s: {_source(right)}; the last answer was {last!r}")


async def until_led(client: Client, topic: str = "t", partition: int = 0, *, but: str | None = None) -> str:
    """Wait until the cluster reports that a node other than `but` leads a partition. Return the name of that node."""

    async def leader() -> str | None:
        return (await client.admin.topic(topic)).partitions[partition].leader

    found = await until_answer(leader, lambda name: name not in (None, but))
    assert found is not None
    return found


def wait_until(check: Callable[[], object]) -> None:
    """Wait like `until_holds`, in tests without an event loop."""
    deadline, pauses_s = time.monotonic() + PATIENCE_S, _pauses_s()
    while not _holds(check):
        if time.monotonic() >= deadline:
            assert check(), f"never held in {PATIENCE_S:g} s: {_source(check)}"
            return
        time.sleep(next(pauses_s))


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended. It may be the child of another process. A zombie counts as ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(descriptor)):
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(PATIENCE_S * 1000), f"process {pid} still runs after {PATIENCE_S:g} s"


def _pauses_s() -> Iterator[float]:
    """Yield pauses in seconds. Each pause is 1.5 times the previous one, up to `_SELDOM_S`."""
    pause_s = _LOOK_S
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, _SELDOM_S)


def _holds(check: Callable[[], object]) -> bool:
    try:
        return bool(check())
    except _NOT_YET:
        return False


def _source(check: Callable[..., object]) -> str:
    try:
        return " ".join(inspect.getsource(check).split())
    except OSError:
        return repr(check)
