"""Feature levels: what nodes may write and send while nodes of different versions are in one cluster.

A level is a number. Each version of sandq knows a range of levels (`KNOWN`). The metadata holds the current level of
the cluster, which begins at `FIRST_LEVEL`. Additions of a new version to entries, rows or frames between nodes belong
to a new level. No node proposes, stores or sends them before the cluster has reached that level. The cluster reaches a
level only if every registered node supports it. The level never goes down, so that every admitted node can read what is
stored.

=====  =======  ======================================
level  since    what it adds
=====  =======  ======================================
19     v0.3.0   everything that the first release has
=====  =======  ======================================

Lower levels belonged to development versions. Their numbers are not used again, so that data of such a version is
recognized and refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Levels(NamedTuple):
    """A range of feature levels, including both ends."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FIRST_LEVEL: Final = 19
"""Level of a new cluster, and of a new partition."""
KNOWN: Final = Levels(lowest=FIRST_LEVEL, highest=FIRST_LEVEL)
"""Levels that this version supports."""
