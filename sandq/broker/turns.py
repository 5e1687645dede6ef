"""Turns of the event loop: who has much to do does a part of it, and lets all others go first."""

from __future__ import annotations

from typing import ClassVar, Final

import anyio.lowlevel

TURN_WORK: Final = 1024
"""Units of work in one round of the loop, of all who have more to do than that. A unit is what a small frame costs, a
few microseconds."""
LEAST_WORK: Final = 64
"""That one of them does in its turn, however many they are: to change from one to the next costs a few units."""


class Turn:
    """What a task does in one turn: the more of them have more to do, the less is one turn, so that who has little to
    do waits for a round no longer because there are many. It is counted, not timed, and so the same on every machine.

    turn.left -= 8
    if turn.left <= 0:
        await turn.end()
    """

    __slots__ = ("left",)

    waiting: ClassVar[int] = 0
    """How many have done theirs, and have more to do."""

    def __init__(self) -> None:
        self.left = 0
        """Units of work; below one others are to go first."""
        self.begin()

    def begin(self) -> None:
        """Everybody else has just had a turn."""
        self.left = max(TURN_WORK // (Turn.waiting + 1), LEAST_WORK)

    async def end(self) -> None:
        """Go on when everybody else has had a turn."""
        Turn.waiting += 1
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            Turn.waiting -= 1
        self.begin()

    async def spend(self, work: int) -> None:
        """Do so much, and let the others go first if that was the rest of this turn."""
        self.left -= work
        if self.left <= 0:
            await self.end()
