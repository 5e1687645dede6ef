"""Tests that the SQL process of a node is restarted when it ends, except at the end of the node."""

from __future__ import annotations

import itertools

import trio
import trio.testing

from sandq.node.sql import BACK_OFF_FIRST_S, BACK_OFF_MOST_S, STEADY_S, keep_running


async def test_ended_process_is_restarted_with_backoff(autojump_clock: trio.testing.MockClock) -> None:
    starts: list[float] = []
    stopping = trio.Event()

    async def run_one() -> str:
        starts.append(trio.current_time())
        if len(starts) == 12:  # the process lives for a long time
            await trio.sleep(STEADY_S)
        if len(starts) == 14:
            stopping.set()
        return "exit code 1"

    await keep_running(run_one, stopping)
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(starts)]
    assert pauses[:4] == [BACK_OFF_FIRST_S * 2**times for times in range(4)]
    assert max(pauses[:11]) == BACK_OFF_MOST_S
    assert pauses[11:] == [STEADY_S + BACK_OFF_FIRST_S, 2 * BACK_OFF_FIRST_S], (
        "a process that lived long resets the back-off"
    )


async def test_stop_during_backoff_prevents_a_restart(autojump_clock: trio.testing.MockClock) -> None:
    starts: list[float] = []
    stopping = trio.Event()

    async def run_one() -> str:
        starts.append(trio.current_time())
        return "exit code 1"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, run_one, stopping)
        await trio.sleep(BACK_OFF_FIRST_S / 2)
        stopping.set()
    assert len(starts) == 1
