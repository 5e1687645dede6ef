"""Heaps whose stale entries are skipped when they come to the top, rather than searched for when they end.

Behind one long-lived top stale entries would gather without bound, so a heap that has grown is built anew of what
lives: at most once in as many pushes as there are living entries, which is constant work a push. Nothing depends on
when that happens: what stands on top is the least living entry either way.
"""

from __future__ import annotations

FEW = 64
"""Stale entries that are left where they are, however few live."""


def is_overgrown(entries: int, living: int) -> bool:
    """Return whether a heap has so many entries that it should be built anew."""
    return entries > 2 * living + FEW
