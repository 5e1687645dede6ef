"""ReadIndex (Raft dissertation, section 6.4): a leader proves that it still leads, then serves consistent reads.

A reply proves leadership only for the moment when its request was sent, because the reply may be delayed, or this node
may have stalled since the reply arrived.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

MARK_S = 0.05
"""Resolution, in s, of the recorded send times of messages."""
MARKS = 256
"""Maximum number of recorded send times. They cover at least 12 s; a leader that gets no reply for 2 s steps down."""

ReadDone = Callable[[int | None], None]
"""Called with the index that must be applied before the read; None if this node no longer leads."""


class _Round(NamedTuple):
    commit: int
    """Commit index at the start of the round."""
    after: int
    """Number of the last message sent before the round. Only replies to later messages confirm it."""
    waiting: list[ReadDone]


class ReadIndex:
    """The pending reads of one leader. One round of messages serves all reads of a commit batch."""

    def __init__(self) -> None:
        self._gathered: list[ReadDone] = []
        """Reads that are in no round yet."""
        self._rounds: list[_Round] = []
        """Rounds that are not confirmed yet, oldest first."""
        self._heard: dict[str, int] = {}
        """By member: highest number of a message to which the member has replied."""
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS)
        """(message number, time in s), ascending: the last number sent at that time."""

    @property
    def pending(self) -> bool:
        return bool(self._gathered or self._rounds)

    def has_work(self, may_begin: bool, member: str, voters: Sequence[str]) -> bool:
        """Return whether a tick can start a round or finish one for the pending reads.

        If False, no tick is needed now: each reply causes a tick."""
        return bool(self._gathered and may_begin) or bool(self._rounds and self._is_confirmed(member, voters))

    def _is_confirmed(self, member: str, voters: Sequence[str]) -> bool:
        """Return whether a majority has confirmed the first round."""
        after = self._rounds[0].after
        return 2 * sum([1 for v in voters if v == member or self._heard.get(v, 0) > after]) > len(voters)

    def ask(self, done: ReadDone) -> None:
        """Add a read to the next round."""
        self._gathered.append(done)

    def begin(self, index: int, sent: int) -> bool:
        """Start a round for the pending reads. Return False if there are none.

        `index`: the commit index. `sent`: number of the last message sent."""
        if not self._gathered:
            return False
        self._rounds.append(_Round(index, sent, self._gathered))
        self._gathered = []
        return True

    def heard(self, member: str, seq: int) -> None:
        """Record that a member has replied to message `seq`."""
        self._heard[member] = max(seq, self._heard.get(member, 0))

    def mark(self, sent: int, now_s: float) -> None:
        """Record that messages numbered above `sent` are sent at `now_s` or later."""
        if not self._marks or now_s - self._marks[-1][1] >= MARK_S:
            self._marks.append((sent, now_s))

    def heard_s(self, member: str) -> float:
        """Return a time in s after which this leader sent a message to which the member has replied.

        It is the latest recorded time with this property; -inf if there is none."""
        seq = self._heard.get(member, 0)
        return next((at_s for sent, at_s in reversed(self._marks) if sent < seq), -math.inf)

    def finish(self, member: str, voters: Sequence[str]) -> None:
        """Complete the reads of all rounds that a majority has confirmed."""
        while self._rounds and self._is_confirmed(member, voters):
            first = self._rounds.pop(0)
            for done in first.waiting:
                done(first.commit)

    def fail(self) -> None:
        """Fail all pending reads, because this member no longer leads."""
        waiting = [done for round_ in self._rounds for done in round_.waiting] + self._gathered
        self._rounds, self._gathered, self._heard = [], [], {}
        self._marks.clear()
        for done in waiting:
            done(None)
