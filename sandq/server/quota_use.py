"""What identities with a quota have, for those who look at them, and for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from heapq import nlargest
from typing import Any, Final

from sandq.broker.owner_usage import NOTHING, Held
from sandq.metadata.records import Topic
from sandq.server.metrics.text import Exposition
from sandq.server.quota_meters import Meter, QuotaMeters

IDENTITIES: Final = 100
"""That have samples: those that asked most."""


def use_of(
    principals: Collection[str], topics: Collection[Topic], held: Mapping[str, Held], meters: QuotaMeters
) -> dict[str, dict[str, int]]:
    """Return what these have, by principal: topics and partitions that they own; what their topics hold, of those whose
    quota bounds it; connections to this node, and what they asked of it since it started."""
    owned, partitions = Counter[str](), Counter[str]()
    for topic in topics:
        if topic.owner is not None and topic.owner in principals:
            owned[topic.owner] += 1
            partitions[topic.owner] += len(topic.partitions)
    found = {}
    for name in principals:
        meter, holds = meters.meters.get(name) or Meter(), held.get(name, NOTHING)
        found[name] = {
            "topics": owned[name],
            "partitions": partitions[name],
            **holds._asdict(),
            "connections": meter.connections,
            "requests": meter.requests,
            "bytes": meter.bytes,
        }
    return found


def tell_quotas(meters: QuotaMeters, held: Mapping[str, Held], told: Exposition) -> None:
    """Tell metrics of identities that have a quota: of no more than `IDENTITIES`. On any thread."""
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
