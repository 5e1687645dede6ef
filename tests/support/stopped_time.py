"""A clock for event loops on which a machine that stands still takes no time.

What runs in one process, as a client and the fake server it talks to, is delayed all at once: real time that passed
while none of it ran must not be held against any of it. Between two looks at this clock at most `STEP_S` passes, so
every timeout stands for so many turns of the loop at least.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

STEP_S = 0.005


class StoppedTime:
    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._now = 1000.0

    def now(self) -> float:
        seen = time.monotonic()
        self._now += min(seen - self._seen, STEP_S)
        self._seen = seen
        return self._now


class StoppedClock(trio.abc.Clock):
    """For trio; a test under pytest-trio runs by it when one of its fixtures returns one."""

    def __init__(self) -> None:
        self._time = StoppedTime()

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self._time.now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(deadline - self._time.now(), STEP_S)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout if timeout is None else min(timeout, STEP_S))


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._time = StoppedTime()
        super().__init__(_Selector())

    def time(self) -> float:
        return self._time.now()


def run_by_it(main: Callable[[], Awaitable[Any]], backend: str) -> Any:
    """`anyio.run` on such a clock."""
    options: dict[str, Any] = {"clock": StoppedClock()} if backend == "trio" else {"loop_factory": _Loop}
    return anyio.run(main, backend=backend, backend_options=options)


@pytest.fixture(autouse=True)
def loop_clock(request: pytest.FixtureRequest) -> StoppedClock | None:
    """For a `conftest.py`: all async tests below it run by this clock, but those with a clock of their own."""
    return None if {"autojump_clock", "mock_clock"} & set(request.fixturenames) else StoppedClock()
