"""Turns of the event loop: who has much to do does a part of it, and lets all others go first."""

from __future__ import annotations

from typing import Final

import anyio.lowlevel

TURN_WORK: Final = 1024
"""Units of work in one turn. A unit is what a small frame costs, a few microseconds."""


class Turn:
    """What a task does in one turn. It is counted, not timed, and so the same on every machine.

    turn.left -= 8
    if turn.left <= 0:
        await turn.end()
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = TURN_WORK
        """Units of work; below one others are to go first."""

    def begin(self) -> None:
        """Everybody else has just had a turn."""
        self.left = TURN_WORK

    async def end(self) -> None:
        """Go on when everybody else has had a turn."""
        await anyio.lowlevel.checkpoint()
        self.left = TURN_WORK

    async def spend(self, work: int) -> None:
        """Do so much, and let the others go first if that was the rest of this turn."""
        self.left -= work
        if self.left <= 0:
            await self.end()
