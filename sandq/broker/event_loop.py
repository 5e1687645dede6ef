"""Cooperation of the tasks of one event loop: time slices for long work, and signals that wake waiting tasks."""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import trio
from anyio.lowlevel import RunVar

FIRST_WORK: Final = 128
"""Units of work in the first turn of who has just come, beside all others who have. A unit is what a small frame
costs, a few microseconds."""
TURN_WORK: Final = 1024
"""In each after that; one of those who have more to do has it in a round of the loop."""
SHARED_WORK: Final = 256
"""The same while others stand in line: what waits for a few rounds, as every produce does, is not to wait for long."""


class Turn:
    """What a task does in one turn. Who has more to do than a little stands in line: one of them has a turn in each
    round of the loop, however many they are, and those who have little to do go past them. It is counted, not timed,
    and so the same on every machine.

    turn.left -= 8
    if turn.left <= 0:
        await turn.end()
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = FIRST_WORK
        """Units of work; below one others are to go first."""

    def begin(self) -> None:
        """There was nothing to do for a while."""
        self.left = FIRST_WORK

    async def end(self) -> None:
        """Go on when all others who stand in line have had a turn, and everybody else."""
        line = _line_of_this_loop()
        await line.wait()
        self.left = SHARED_WORK if line.is_waited_for else TURN_WORK

    async def spend(self, work: int) -> None:
        """Do so much, and let the others go first if that was the rest of this turn."""
        self.left -= work
        if self.left <= 0:
            await self.end()


class _Line:
    """Lets one of those who wait go on in each round of the loop: who goes on wakes the next, whose turn is then the
    next round's."""

    def __init__(self) -> None:
        self._waiting: deque[anyio.Event] = deque()
        self._moves = False
        """Somebody was woken who has yet to wake the next."""

    @property
    def is_waited_for(self) -> bool:
        return self._moves

    async def wait(self) -> None:
        mine = anyio.Event()
        self._waiting.append(mine)
        if not self._moves:
            self._wake_next()
        try:
            await mine.wait()
        except BaseException:  # it was cancelled
            if not mine.is_set():
                self._waiting.remove(mine)
            else:
                self._wake_next()
            raise
        self._wake_next()

    def _wake_next(self) -> None:
        self._moves = bool(self._waiting)
        if self._moves:
            self._waiting.popleft().set()


_line: RunVar[_Line] = RunVar("sandq_line")


def _line_of_this_loop() -> _Line:
    try:
        return _line.get()
    except LookupError:
        line = _Line()
        _line.set(line)
        return line


class Signal:
    """Wakes every task that waits at that moment; a `set` that finds nobody waiting is forgotten.

    So the waiting task looks at what it waits for, finds nothing and waits, without an await in between.
    """

    __slots__ = ("_event", "is_muted")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self.is_muted = False
        """A `set` is forgotten even so: what it tells of is looked at otherwise."""

    def set(self) -> None:
        """Wake whoever waits."""
        if self.is_muted:
            return
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait until the next `set`."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
