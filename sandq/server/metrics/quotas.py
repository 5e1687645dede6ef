"""Metrics of identities that have a quota."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any, Final

from sandq.broker.owner_usage import Held
from sandq.server.metrics.text import Exposition
from sandq.server.quota_meters import QuotaMeters

IDENTITIES: Final = 100
"""Most identities that have samples: those that sent the most requests, and those that store the most bytes."""


def tell_quotas(meters: QuotaMeters, held: Mapping[str, Held], told: Exposition) -> None:
    """Write the samples of identities that have a quota, at most `IDENTITIES` of each kind. On any thread."""
    most: list[tuple[str, Any]] = nlargest(IDENTITIES, list(meters.meters.items()), key=lambda item: item[1].requests)
    for name, meter in sorted(most):
        labels = told.labels("sandq_identity_requests_total", name)
        told.value("sandq_identity_requests_total", meter.requests, labels)
        told.value("sandq_identity_request_bytes_total", meter.bytes, labels)
        told.value("sandq_identity_refused_total", meter.refused, labels)
        told.value("sandq_identity_connections", meter.connections, labels)
    largest = nlargest(IDENTITIES, held.items(), key=lambda item: item[1].stored_bytes)
    for name, holds in sorted(largest):
        labels = told.labels("sandq_identity_stored_bytes", name)
        told.value("sandq_identity_stored_bytes", holds.stored_bytes, labels)
        told.value("sandq_identity_pending_messages", holds.pending_messages, labels)
