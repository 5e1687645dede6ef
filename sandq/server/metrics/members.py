"""What a node tells Prometheus of the other members."""

from __future__ import annotations

from typing import Final

from sandq.broker.stats.histogram import Histogram
from sandq.membership.discovery import Seen
from sandq.server.metrics.text import Exposition

_REFUSED: Final = "refused_"
_PLAIN: Final = ("probes", "probes_failed", "suspicions", "refutations", "malformed", "stalls", "datagrams_not_sent")
"""Counts that are told under their own names."""


def tell_members(seen: Seen, round_trips: Histogram, told: Exposition) -> None:
    """States of all backends; the rest only of the native one, which knows it."""
    for state, count in seen.states.items():
        told.value("sandq_members", count, told.labels("sandq_members", state.value))
    told.value("sandq_gossip_doubt", seen.doubt)
    told.histogram("sandq_gossip_round_trip_seconds", round_trips)
    counts = seen.counts
    for name in _PLAIN:
        told.value(f"sandq_gossip_{name}_total", counts.get(name, 0))
    for direction in ("in", "out"):
        for metric, counted in (
            ("sandq_gossip_datagrams_total", f"datagrams_{direction}"),
            ("sandq_gossip_streams_total", f"streams_{direction}"),
            ("sandq_gossip_streams_failed_total", f"streams_{direction}_failed"),
        ):
            told.value(metric, counts.get(counted, 0), told.labels(metric, direction))
    for name in sorted(counts):
        if name.startswith(_REFUSED):
            metric = "sandq_gossip_refused_total"
            told.value(metric, counts[name], told.labels(metric, name.removeprefix(_REFUSED)))
