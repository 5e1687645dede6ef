"""ReadIndex: a leader proves that it still leads, then reads what its state machine has applied by then.

An answer proves it for the moment when the message was sent that it answers: it may have been long on its way, or this
node may have stood still since it came.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

MARK_S = 0.05
"""When a message was sent is known this well."""
MARKS = 256
"""That are kept: 12 s at least. A leader that hears nobody for 2 s is none any more."""

ReadDone = Callable[[int | None], None]
"""With the index that must be applied before the read; None: this node leads no more."""


class _Round(NamedTuple):
    commit: int
    after: int
    """Answers to messages numbered above this one count: they were sent after the reads came."""
    waiting: list[ReadDone]


class ReadIndex:
    """One round serves all reads of a pass."""

    def __init__(self) -> None:
        self._gathered: list[ReadDone] = []
        self._rounds: list[_Round] = []
        self._heard: dict[str, int] = {}
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS)
        """(number of a message, when it was the last one that was sent), rising."""

    @property
    def pending(self) -> bool:
        return bool(self._gathered or self._rounds)

    def has_work(self, may_begin: bool, member: str, voters: Sequence[str]) -> bool:
        """Whether a tick can do something for the reads that wait: begin a round, or answer one. While neither is so
        there is nothing to do but wait: answers bring ticks of their own."""
        return bool(self._gathered and may_begin) or bool(self._rounds and self._is_confirmed(member, voters))

    def _is_confirmed(self, member: str, voters: Sequence[str]) -> bool:
        """Whether a majority has confirmed the first round."""
        after = self._rounds[0].after
        return 2 * sum([1 for v in voters if v == member or self._heard.get(v, 0) > after]) > len(voters)

    def ask(self, done: ReadDone) -> None:
        self._gathered.append(done)

    def begin(self, index: int, sent: int) -> bool:
        """Start a round with what has gathered. `sent`: the number of the last message. Whether there was anything."""
        if not self._gathered:
            return False
        self._rounds.append(_Round(index, sent, self._gathered))
        self._gathered = []
        return True

    def heard(self, member: str, seq: int) -> None:
        self._heard[member] = max(seq, self._heard.get(member, 0))

    def mark(self, sent: int, now_s: float) -> None:
        """Whatever comes behind the message of this number is sent from now on."""
        if not self._marks or now_s - self._marks[-1][1] >= MARK_S:
            self._marks.append((sent, now_s))

    def heard_s(self, member: str) -> float:
        """The latest time after which a message was sent that this member has answered; -inf: none is known."""
        seq = self._heard.get(member, 0)
        return next((at_s for sent, at_s in reversed(self._marks) if sent < seq), -math.inf)

    def finish(self, member: str, voters: Sequence[str]) -> None:
        """Answer the rounds that a majority has confirmed."""
        while self._rounds and self._is_confirmed(member, voters):
            first = self._rounds.pop(0)
            for done in first.waiting:
                done(first.commit)

    def fail(self) -> None:
        waiting = [done for round_ in self._rounds for done in round_.waiting] + self._gathered
        self._rounds, self._gathered, self._heard = [], [], {}
        self._marks.clear()
        for done in waiting:
            done(None)
