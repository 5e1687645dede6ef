"""What one principal may write into the audit log, so that it cannot push out what others did.

A principal that has written its share is still noted, collapsed: one line a minute for each kind of request and result,
which says how many there were. So flooding the log hides neither the acts of others nor the kinds of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

SHARE: Final = 16
"""A principal may write one part in so many of all files at once, and as much again within `REFILL_S`."""
LEAST_BYTES: Final = 64 << 10
"""Bytes that it may write at once at least."""
REFILL_S: Final = 3600.0
COLLAPSED_S: Final = 60.0
"""Time for which lines of one kind are collapsed."""
PRINCIPALS: Final = 4096
"""Principals that are kept; of more, the one that wrote longest ago is forgotten."""
KINDS: Final = 4096
"""Kinds of collapsed lines that are kept at a time; lines of more are lost."""

Kind = tuple[str, str, str]
"""Who, request, result."""


@dataclass(slots=True)
class Collapsed:
    """Lines of one kind that were not written."""

    since_s: float
    count: int = 0


class PrincipalBudgets:
    """What each principal has left."""

    def __init__(self, total_bytes: int, second: Callable[[], float]) -> None:
        """`total_bytes`: of all files; `second`: a monotonic clock."""
        self._most = float(max(total_bytes // SHARE, LEAST_BYTES))
        self._second = second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By who: bytes left, and when that was."""
        self._collapsed: dict[Kind, Collapsed] = {}

    def has_bytes(self, who: str) -> bool:
        """Return whether a principal may write another line."""
        return self._now_left(who) > 0

    def take(self, who: str, size: int) -> None:
        """Count a line that is written."""
        left = self._now_left(who) - size
        self._left.pop(who, None)
        self._left[who] = (left, self._second())
        if len(self._left) > PRINCIPALS:
            self._left.popitem(last=False)

    def _now_left(self, who: str) -> float:
        left, at_s = self._left.get(who, (self._most, 0.0))
        return min(self._most, left + (self._second() - at_s) * self._most / REFILL_S)

    def collapse(self, kind: Kind) -> bool | None:
        """Return whether a line of one kind is the first within its time, and is to be written; None: it is lost."""
        known = self._collapsed.get(kind)
        if known is None:
            if len(self._collapsed) >= KINDS:
                return None
            self._collapsed[kind] = Collapsed(self._second())
            return True
        known.count += 1
        return False

    def ended(self, *, all_of_them: bool = False) -> Iterator[tuple[Kind, int]]:
        """Return the kinds whose time is over, and how many lines of each were collapsed."""
        now_s = self._second()
        for kind, one in list(self._collapsed.items()):  # in the order in which they began
            if not all_of_them and now_s - one.since_s < COLLAPSED_S:
                return
            del self._collapsed[kind]
            if one.count:
                yield kind, one.count
