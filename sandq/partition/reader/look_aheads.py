"""The look-aheads of all groups of a node: counts their memory, and evicts look-aheads if they use too much.

Memory of groups that cannot be evicted (the ready queues themselves) reduces the memory for look-aheads. But a part of
the share always remains for look-aheads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Protocol

EVICT_TO: Final = 0.75
"""An eviction reduces look-aheads to this part of the allowed memory, so that the next eviction is not needed
immediately."""
LEAST: Final = 0.25
"""Part of the share that look-aheads may always use."""


class LookAhead(Protocol):
    """A cache of rows that one cursor has read ahead."""

    held_bytes: int
    """Bytes that an eviction of this look-ahead would free."""
    fixed_bytes: int
    """Bytes in use that cannot be evicted, such as the ready queues."""
    used: int
    """Number of the last use, from `LookAheads.next_use`."""

    def evict(self) -> None:
        """Drop the cache, except the head."""
        ...


class LookAheads:
    """Memory used by the look-aheads of a node. Belongs to the thread that applies entries.

    Look-aheads report their bytes. The bytes of deleted look-aheads count until the next eviction.
    """

    def __init__(self, share_bytes: float = math.inf) -> None:
        """`share_bytes`: memory in bytes that all look-aheads of the node may use together."""
        self.share_bytes = share_bytes
        self.bytes = 0
        """Bytes that can be evicted."""
        self.fixed_bytes = 0
        """Bytes that cannot be evicted."""
        self.evicted = 0
        """Number of evictions so far."""
        self._last_use = 0

    def next_use(self) -> int:
        """Return the number of the next use. Later uses have higher numbers."""
        self._last_use += 1
        return self._last_use

    @property
    def is_over(self) -> bool:
        """Whether more memory is in use than allowed."""
        return self.bytes > self._allowed_bytes

    @property
    def _allowed_bytes(self) -> float:
        """Bytes that evictable memory may use."""
        return max(self.share_bytes - self.fixed_bytes, LEAST * self.share_bytes)

    def evict(self, living: Callable[[], Iterable[LookAhead]]) -> None:
        """Evict the least recently used look-aheads, if all together use more than allowed. `living` returns all
        existing look-aheads."""
        if not self.is_over:
            return
        known = list(living())
        held = sorted([one for one in known if one.held_bytes], key=attrgetter("used"))
        self.fixed_bytes = sum([one.fixed_bytes for one in known])
        self.bytes = sum([one.held_bytes for one in held])
        for one in held:
            if self.bytes <= EVICT_TO * self._allowed_bytes:
                return
            one.evict()
            self.evicted += 1
