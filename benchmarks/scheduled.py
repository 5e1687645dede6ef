"""Messages with times of their own: to take them in, by how far they are spread, and to bring them out, by how many are
due a second."""

from __future__ import annotations

from functools import partial

from benchmarks.lateness import Due, lateness
from benchmarks.produce import HOUR_MS, MONTH_MS, produce
from benchmarks.result import Goal, Row

YEAR_MS = 365 * 24 * HOUR_MS
CONNECTIONS, BATCH = 16, 1000
BATCHES, QUICK_BATCHES = 40, 2
"""Of each connection."""
DUE_S = 5
"""So long messages are due."""
QUICK_MESSAGES = 10_000
SPREADS = {
    "moment": ("all of a batch at one moment", 0),
    "second": ("each at a moment within a second", 1000),
    "hour": ("each at a moment within an hour", HOUR_MS),
    "month": ("each at a moment within a month", MONTH_MS),
    "year": ("each at a moment within a year", YEAR_MS),
}
RATES = {1000: None, 5000: Goal(10, "ms", at_least=False), 10_000: Goal(150, "ms", at_least=False), 20_000: None}
"""Due a second: the goal for how late they are."""


def _due(per_s: int) -> Row:
    due = Due(per_s * DUE_S, min(per_s * DUE_S, QUICK_MESSAGES), per_s)
    return Row(f"due_{per_s}", "scheduled", f"{per_s:,} due a second", partial(lateness, due), "ms p99", RATES[per_s])


ROWS = (
    *(
        Row(
            f"schedule_{name}",
            "scheduled",
            f"batches of {BATCH} x 100 B, {CONNECTIONS} connections, {what}",
            partial(produce, CONNECTIONS, BATCH, BATCHES, QUICK_BATCHES, window=2, within_ms=within_ms),
        )
        for name, (what, within_ms) in SPREADS.items()
    ),
    *(_due(per_s) for per_s in RATES),
)
