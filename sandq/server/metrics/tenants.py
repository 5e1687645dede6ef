"""Numbers by tenant of fair topics: of a bounded number in each group, and of all together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final

from sandq.server.metrics.text import Exposition

TENANTS: Final = 100
"""Of a group that have samples: those with most ready."""
TenantRows = Iterable[tuple[str, Mapping[str, Any]]]
"""A group's name, and one of its tenants as `PartitionQueries.tenants` tells of it. A tenant is in one partition."""


def tell_tenants(
    topics: Iterable[tuple[str, TenantRows]], labelled: Container[tuple[str, str]], limit: int, told: Exposition
) -> None:
    """Tell of tenants of those groups that have a label (topic, group); of no more than `limit` in all."""
    left = limit
    for topic, rows in topics:
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        for group, row in rows:
            by_group.setdefault(group, []).append(row)
        for group, of_group in by_group.items():
            if (topic, group) not in labelled:
                continue
            for row in nsmallest(min(TENANTS, left), of_group, key=_order):
                labels = told.labels("sandq_tenant_ready", topic, group, row["tenant"])
                told.value("sandq_tenant_ready", row["ready"], labels)
                told.value("sandq_tenant_in_flight", row["in_flight"], labels)
                left -= 1


def _order(row: Mapping[str, Any]) -> tuple[int, int, str]:
    return -row["ready"], -row["in_flight"], row["tenant"]
