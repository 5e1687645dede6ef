"""Tests of the timers of a node: each fires as soon as the clock reaches its time, and not earlier."""

from __future__ import annotations

import trio
import trio.testing

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import STALE_LEAST, Timers

HOUR_MS = 3_600_000


async def test_timer_due_by_newly_accepted_clock_fires_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The timer once fired at the next regular check, up to a second later."""
    ahead_s = 0.0
    clock = GuardedClock(wall=lambda: 1000.0 + trio.current_time() + ahead_s, monotonic=trio.current_time)
    timers, fired = Timers(clock), list[float]()
    timers.at(clock.now_ms() + HOUR_MS, lambda: fired.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.sleep(10.25)
        ahead_s = 3600.0
        await trio.sleep(10)
        assert fired == [], "the new time was not accepted yet"
        clock.accept()
        await trio.testing.wait_all_tasks_blocked()
        assert fired == [20.25]
        nursery.cancel_scope.cancel()


async def test_timers_do_not_fire_early(autojump_clock: trio.testing.MockClock) -> None:
    clock = GuardedClock(wall=lambda: 1000.0 + trio.current_time(), monotonic=trio.current_time)
    timers, fired = Timers(clock), list[int]()
    begun_ms = clock.now_ms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.testing.wait_all_tasks_blocked()
        for later_ms in (5000, 20, 700):
            timers.at(begun_ms + later_ms, lambda later_ms=later_ms: fired.append(clock.now_ms() - begun_ms - later_ms))
        await trio.sleep(6)
        assert len(fired) == 3 and all(0 <= late_ms <= 1 for late_ms in fired)
        nursery.cancel_scope.cancel()


async def test_cancelled_timer_is_not_called_and_frees_its_memory(autojump_clock: trio.testing.MockClock) -> None:
    clock = GuardedClock(wall=lambda: 1000.0 + trio.current_time(), monotonic=trio.current_time)
    timers, fired = Timers(clock), list[int]()
    now_ms = clock.now_ms()
    kept = [timers.at(now_ms + number, lambda number=number: fired.append(number)) for number in range(10)]
    for number in range(10_000):
        timers.at(now_ms + HOUR_MS + number, lambda: fired.append(-1)).cancel()
        assert len(timers) <= len(kept) + 2 * STALE_LEAST + 1
    kept[3].cancel()
    kept[3].cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.sleep(1)
        kept[4].cancel()
        await trio.sleep(2 * HOUR_MS / 1000)
        assert fired == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        nursery.cancel_scope.cancel()
