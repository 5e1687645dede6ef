"""Provide a clock for event loops that does not advance while the machine is stopped.

All tasks of one process, such as a client and its node, are delayed together, so the real time of a pause must not end
their timeouts. Between two reads of this clock at most `STEP_S` passes, so every timeout allows a minimum number of
iterations of the loop. A node's own clock uses it as well: otherwise leases would end before their consumer could
extend them."""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from tests.support.raft.library_time import replace_time

STEP_S = 0.005


class StoppedTime:
    """A monotonic clock, and a wall clock that moves with it, both in seconds. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        self._now = 1000.0
        self._ahead_s = time.time() - self._now

    def now(self) -> float:
        with self._lock:
            seen = time.monotonic()
            self._now += min(seen - self._seen, STEP_S)
            self._seen = seen
            return self._now

    def wall(self) -> float:
        return self.now() + self._ahead_s


class StoppedClock(trio.abc.Clock):
    """A clock for trio. Its loop never sleeps for longer than `STEP_S`.

    So `wait_all_tasks_blocked` with a cushion of at least `STEP_S` would never return."""

    def __init__(self) -> None:
        self.time = StoppedTime()

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self.time.now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(deadline - self.time.now(), STEP_S)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout if timeout is None else min(timeout, STEP_S))


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._time = StoppedTime()
        super().__init__(_Selector())

    def time(self) -> float:
        return self._time.now()


def run_with_stopped_time(main: Callable[[], Awaitable[Any]], backend: str) -> Any:
    """Run `anyio.run` with a clock that does not advance while the machine is stopped."""
    options: dict[str, Any] = {"clock": StoppedClock()} if backend == "trio" else {"loop_factory": _Loop}
    return anyio.run(main, backend=backend, backend_options=options)


def _run(stopped: StoppedClock, main: Callable[[], Awaitable[Any]], *, clock: None, instruments: Any) -> Any:
    return trio.run(main, clock=stopped, instruments=instruments)


@pytest.fixture(autouse=True)
def loop_clock(request: pytest.FixtureRequest) -> StoppedClock | None:
    """Run all async tests of a `conftest.py` or a module with `StoppedClock`, except for tests with their own clock.

    The fixture replaces the `run` function of pytest-trio. pytest-trio would accept a clock only from a fixture that
    each test names as an argument."""
    if {"autojump_clock", "mock_clock"} & set(request.fixturenames):
        return None
    clock = StoppedClock()
    if request.node.get_closest_marker("trio") is not None:
        request.node.add_marker(pytest.mark.trio(run=partial(_run, clock)), append=False)
    return clock


_this_test: StoppedTime | None = None


def time_of_this_test() -> StoppedTime:
    """Return the clock that the event loop of the running test, and nodes in its process, use."""
    assert _this_test is not None, "the fixture node_time is missing"
    return _this_test


@pytest.fixture(autouse=True)
def node_time(loop_clock: StoppedClock | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nodes in this process, and elections, use the clock of `loop_clock`.

    A `conftest.py` that imports this fixture must import `loop_clock`, too."""
    stopped = loop_clock.time if loop_clock is not None else StoppedTime()
    monkeypatch.setattr(f"{__name__}._this_test", stopped)
    monkeypatch.setattr(
        "sandq.node.context.GuardedClock", partial(GuardedClock, wall=stopped.wall, monotonic=stopped.now)
    )
    undo = replace_time(stopped.now, random.Random())
    yield
    undo()
