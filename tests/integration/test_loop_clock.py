"""The event loops of these tests use a clock on which a stall of the process takes no time."""

from __future__ import annotations

import time

import trio
import trio.testing

from tests.support.stopped_time import STEP_S


async def test_a_standstill_takes_no_time() -> None:
    before_s = trio.current_time()
    time.sleep(10 * STEP_S)  # noqa: ASYNC251 - it is the loop that stands still
    assert trio.current_time() - before_s <= STEP_S


async def test_a_test_with_a_clock_of_its_own_keeps_it(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(3600)
    assert trio.current_time() == autojump_clock.current_time()
