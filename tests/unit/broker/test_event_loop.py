"""Tests of cooperative scheduling: many long tasks do not make a round of the loop longer than a few."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from sandq.broker.event_loop import FIRST_WORK, SHARED_WORK, SLICE_WORK, TimeSlice

ROUNDS = 60


async def work_of_rounds(many: int) -> tuple[list[int], list[int]]:
    """Run `many` tasks with more work than time. Return the work of each round of the loop, and of each task."""
    rounds: Counter[int] = Counter()
    each = [0] * many
    number = 0

    async def busy(at: int) -> None:
        time_slice = TimeSlice()
        while True:
            rounds[number] += 1
            each[at] += 1
            await time_slice.spend(1)

    async with trio.open_nursery() as nursery:
        for at in range(many):
            nursery.start_soon(busy, at)
        for number in range(ROUNDS):  # noqa: B007 - the tasks read it
            await trio.lowlevel.checkpoint()
        counted = [*each]  # the task that is cancelled last runs alone
        nursery.cancel_scope.cancel()
    return [rounds[number] for number in range(5, ROUNDS - 1)], counted


async def test_single_task_gets_the_whole_slice() -> None:
    rounds, _ = await work_of_rounds(1)
    assert SLICE_WORK * (len(rounds) - 1) <= sum(rounds) <= SLICE_WORK * (len(rounds) + 1)


@pytest.mark.parametrize("many", [2, 8, 16])
async def test_a_round_is_as_long_for_many_as_for_two(many: int) -> None:
    rounds, each = await work_of_rounds(many)
    # Tasks of a round have any order. So two rounds can lie between two reads of the count.
    assert SHARED_WORK * (len(rounds) - 1) <= sum(rounds) <= SHARED_WORK * (len(rounds) + 1)
    assert max(each) - min(each) <= SHARED_WORK, "each task must get its turn"


async def test_short_task_overtakes_busy_tasks() -> None:
    passed = []
    async with trio.open_nursery() as nursery:

        async def busy() -> None:
            time_slice = TimeSlice()
            while True:
                await time_slice.spend(1)

        for _ in range(16):
            nursery.start_soon(busy)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        time_slice = TimeSlice()
        for _ in range(FIRST_WORK - 1):
            await time_slice.spend(1)
            passed.append(time_slice.left)
        nursery.cancel_scope.cancel()
    assert passed == [*range(FIRST_WORK - 1, 0, -1)], "the short task never has to wait"


@pytest.mark.parametrize("is_next", [True, False])
async def test_cancelled_waiter_delays_no_other(is_next: bool) -> None:
    order: list[str] = []
    async with trio.open_nursery() as nursery:

        async def wait(name: str, scope: trio.CancelScope) -> None:
            with scope:
                await TimeSlice().end()
                order.append(name)

        scopes = {name: trio.CancelScope() for name in "abc"}
        for name, scope in scopes.items():
            nursery.start_soon(wait, name, scope)
        with trio.CancelScope() as own:
            own.cancel()
            await TimeSlice().end()
        for name in "abc" if is_next else "b":
            scopes[name].cancel()
    assert set(order) <= {"a", "b", "c"}
    time_slice = TimeSlice()
    await time_slice.end()
    assert time_slice.left == SLICE_WORK, "no task waits any more"
