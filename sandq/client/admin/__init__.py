"""Administration of topics, groups and the cluster."""

from __future__ import annotations

from sandq.client.admin.partitions import partition_rows

__all__ = ["partition_rows"]
