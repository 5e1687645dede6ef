"""Who has much to do shares the rounds of the loop with all others who have."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from sandq.broker.turns import LEAST_WORK, TURN_WORK, Turn

ROUNDS = 20


async def work_of_rounds(many: int) -> list[int]:
    """How much is done in each round of the loop while so many tasks have more to do than there is time."""
    done: Counter[int] = Counter()
    number = 0

    async def busy() -> None:
        turn = Turn()
        while True:
            done[number] += 1
            await turn.spend(1)

    async with trio.open_nursery() as nursery:
        for _ in range(many):
            nursery.start_soon(busy)
        for number in range(ROUNDS):  # noqa: B007 - the tasks read it
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return [done[number] for number in range(5, ROUNDS - 1)]


@pytest.mark.parametrize("many", [1, 2, 8, 16])
async def test_a_round_is_as_long_for_many_as_for_one(many: int) -> None:
    # The order of tasks within a round is any: what is done between two looks is that of two rounds at most.
    rounds = await work_of_rounds(many)
    assert sum(rounds) <= TURN_WORK * (len(rounds) + 1)
    assert sum(rounds) >= TURN_WORK * (len(rounds) - 1)


async def test_each_of_very_many_does_a_little_all_the_same() -> None:
    many = 4 * TURN_WORK // LEAST_WORK
    rounds = await work_of_rounds(many)
    assert sum(rounds) <= many * LEAST_WORK * (len(rounds) + 1)


async def test_who_is_cancelled_waits_no_more() -> None:
    before = Turn.waiting
    with trio.CancelScope() as scope:
        scope.cancel()
        await Turn().end()
    assert Turn.waiting == before
    assert Turn().left == TURN_WORK // (before + 1)
