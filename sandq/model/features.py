"""Feature levels: what nodes of different versions may write and say while both are in one cluster.

A level is a number. Each version of sandq knows a range of them (`KNOWN`); the metadata holds the level that the
cluster is at, at first `FIRST_LEVEL`. What a new version adds to entries, rows or frames between nodes belongs to a new
level: no node proposes, stores or sends it before the cluster has come to that level, and it comes there when every
registered node knows it. It never goes back, so that what was stored can be read by every node that is let in.

=====  =======  ======================================
level  since    what it adds
=====  =======  ======================================
19     v0.3.0   everything that the first release has
=====  =======  ======================================

Lower levels were those of development versions. Their numbers are not used again, so that data of such a version is
recognized and refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Levels(NamedTuple):
    """A range of feature levels, both ends of it included."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FIRST_LEVEL: Final = 19
"""Level of a new cluster, and of a new partition."""
KNOWN: Final = Levels(lowest=FIRST_LEVEL, highest=FIRST_LEVEL)
"""Levels that this version knows."""
