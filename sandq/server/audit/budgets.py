"""Limit the part of the audit log that one principal may fill, so that its lines cannot displace the lines of others.

If a principal has used up its share, its lines are collapsed: each minute, one line per request type and result states
how many lines were collapsed. So a flood of requests does not hide requests of other principals, nor the types of
requests in the flood.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

SHARE: Final = 16
"""A principal may write 1/16 of all files at once, and the same amount again within `REFILL_S`."""
LEAST_BYTES: Final = 64 << 10
"""Minimum number of bytes that a principal may write at once."""
REFILL_S: Final = 3600.0
"""Time in which an empty budget fills up, in seconds."""
COLLAPSED_S: Final = 60.0
"""Time for which lines of one kind are collapsed, in seconds."""
PRINCIPALS: Final = 4096
"""Number of principals that are remembered. If there are more principals, the one whose last line is the oldest is
forgotten."""
KINDS: Final = 4096
"""Maximum number of kinds of collapsed lines at a time. Lines of further kinds are lost."""

Kind = tuple[str, str, str]
"""Owner, request and result of a line."""


@dataclass(slots=True)
class Collapsed:
    """The collapsed lines of one kind."""

    since_s: float
    count: int = 0


class PrincipalBudgets:
    """The remaining budget of each principal."""

    def __init__(self, total_bytes: int, second: Callable[[], float]) -> None:
        """`total_bytes`: maximum size of all files of the audit log. `second`: a monotonic clock, in seconds."""
        self._most = float(max(total_bytes // SHARE, LEAST_BYTES))
        self._second = second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By owner: (free bytes after the last write, time of that write in seconds)."""
        self._collapsed: dict[Kind, Collapsed] = {}

    def has_bytes(self, owner: str) -> bool:
        """Return whether an owner may write a further line."""
        return self._bytes_left(owner) > 0

    def take(self, owner: str, size: int) -> None:
        """Charge a line that is written."""
        left = self._bytes_left(owner) - size
        self._left.pop(owner, None)
        self._left[owner] = (left, self._second())
        if len(self._left) > PRINCIPALS:
            self._left.popitem(last=False)

    def _bytes_left(self, owner: str) -> float:
        """Return the bytes that an owner may write now."""
        left, at_s = self._left.get(owner, (self._most, 0.0))
        return min(self._most, left + (self._second() - at_s) * self._most / REFILL_S)

    def collapse(self, kind: Kind) -> bool | None:
        """Count a line of one kind. Return True if it is the first of its period and must be written; False if it is
        collapsed. Return None if the line is lost, because there are too many kinds."""
        known = self._collapsed.get(kind)
        if known is None:
            if len(self._collapsed) >= KINDS:
                return None
            self._collapsed[kind] = Collapsed(self._second())
            return True
        known.count += 1
        return False

    def ended(self, *, all_of_them: bool = False) -> Iterator[tuple[Kind, int]]:
        """Yield the kinds whose period is over, and the number of collapsed lines of each."""
        now_s = self._second()
        for kind, one in list(self._collapsed.items()):  # the oldest period first
            if not all_of_them and now_s - one.since_s < COLLAPSED_S:
                return
            del self._collapsed[kind]
            if one.count:
                yield kind, one.count
