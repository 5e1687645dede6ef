"""Histograms of a node's statistics. This module imports little, because the HTTP process uses it, too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATENESS = (
    *(-1.0, -0.1, -0.01, -0.001, 0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of lateness, in s. Values below 0 are early deliveries."""
ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)


class Histogram:
    """Counts of values by bucket, and the sum of the values.

    Each bucket has an inclusive upper bound, as in Prometheus. Unlike in Prometheus, a count covers only its own
    bucket, not the lower buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values by bucket. The last bucket is for values above all bounds."""
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight

    def add(self, other: Histogram) -> None:
        """Add the counts and the sum of another histogram, which must have the same bounds."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
