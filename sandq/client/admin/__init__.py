"""Administration of topics, groups and the cluster."""

from __future__ import annotations

from sandq.client.admin.overview import (
    UNREACHABLE,
    ClusterOverview,
    GroupOverview,
    History,
    HistorySlot,
    Lateness,
    TopicOverview,
)
from sandq.client.admin.partitions import partition_rows

__all__ = [
    "UNREACHABLE",
    "ClusterOverview",
    "GroupOverview",
    "History",
    "HistorySlot",
    "Lateness",
    "TopicOverview",
    "partition_rows",
]
