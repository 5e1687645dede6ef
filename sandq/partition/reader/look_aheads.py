"""The look-aheads of all groups of a node: their bytes, summed, and which of them give way when there are too many.

What groups hold beside them that cannot give way, ready queues themselves, counts as well, so that look-aheads have so
much less; but a part of the share is always theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Protocol

EVICT_TO: Final = 0.75
"""An eviction goes on to this part of the share, so that the next one is not due at once."""
LEAST: Final = 0.25
"""Of the share, that look-aheads may have whatever else there is."""


class LookAhead(Protocol):
    """The rows that one cursor has read ahead."""

    held_bytes: int
    """What evicting it would give back."""
    fixed_bytes: int
    """What is held beside it, and stays."""
    used: int
    """The turn in which something was taken from it last."""

    def evict(self) -> None:
        """Keep the head alone."""
        ...


class LookAheads:
    """Belongs to the thread that applies entries. Look-aheads tell it what they hold; those that are gone are counted
    until the next eviction."""

    def __init__(self, share_bytes: float = math.inf) -> None:
        self.share_bytes = share_bytes
        self.bytes = 0
        """Of what may give way."""
        self.fixed_bytes = 0
        """Of what may not."""
        self.evicted = 0
        """How many had to give way so far."""
        self._turn = 0

    def next_turn(self) -> int:
        """The number of one more use: whoever was used later has a higher one."""
        self._turn += 1
        return self._turn

    @property
    def is_over(self) -> bool:
        """Whether there is more than there may be."""
        return self.bytes > self._room

    @property
    def _room(self) -> float:
        """So much there may be of what may give way."""
        return max(self.share_bytes - self.fixed_bytes, LEAST * self.share_bytes)

    def evict(self, living: Callable[[], Iterable[LookAhead]]) -> None:
        """Evict those that were used longest ago, if there is more than the share. `living`: all that there are."""
        if not self.is_over:
            return
        there = list(living())
        held = sorted([one for one in there if one.held_bytes], key=attrgetter("used"))
        self.fixed_bytes = sum([one.fixed_bytes for one in there])
        self.bytes = sum([one.held_bytes for one in held])
        for one in held:
            if self.bytes <= EVICT_TO * self._room:
                return
            one.evict()
            self.evicted += 1
