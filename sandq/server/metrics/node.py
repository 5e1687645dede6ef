"""Write the metrics of a node that are not about topics: members, identities with a quota, and TLS."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from heapq import nlargest
from typing import Any, Final

from sandq.broker.owner_usage import Held
from sandq.broker.stats.histogram import Histogram
from sandq.membership.discovery import Seen
from sandq.server.metrics.text import Exposition
from sandq.server.quota_meters import QuotaMeters
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates

_REFUSED: Final = "refused_"
_PLAIN: Final = ("probes", "probes_failed", "suspicions", "refutations", "malformed", "stalls", "datagrams_not_sent")
"""Counts whose metric has the same name."""


def write_members(seen: Seen, round_trips: Histogram, out: Exposition) -> None:
    """Write the metrics of members and gossip. Counts of gossip are 0 unless the native backend is used."""
    for state, count in seen.states.items():
        out.value("sandq_members", count, out.labels("sandq_members", state.value))
    out.value("sandq_gossip_doubt", seen.doubt)
    out.histogram("sandq_gossip_round_trip_seconds", round_trips)
    counts = seen.counts
    for name in _PLAIN:
        out.value(f"sandq_gossip_{name}_total", counts.get(name, 0))
    for direction in ("in", "out"):
        for metric, counted in (
            ("sandq_gossip_datagrams_total", f"datagrams_{direction}"),
            ("sandq_gossip_streams_total", f"streams_{direction}"),
            ("sandq_gossip_streams_failed_total", f"streams_{direction}_failed"),
        ):
            out.value(metric, counts.get(counted, 0), out.labels(metric, direction))
    for name in sorted(counts):
        if name.startswith(_REFUSED):
            metric = "sandq_gossip_refused_total"
            out.value(metric, counts[name], out.labels(metric, name.removeprefix(_REFUSED)))


IDENTITIES: Final = 100
"""Number of identities that have samples: those with the most requests, and those that store the most bytes."""


def write_quotas(meters: QuotaMeters, held: Mapping[str, Held], out: Exposition) -> None:
    """Write the samples of identities that have a quota, at most `IDENTITIES` of each kind. Any thread may call it."""
    most: list[tuple[str, Any]] = nlargest(IDENTITIES, list(meters.meters.items()), key=lambda item: item[1].requests)
    for name, meter in sorted(most):
        labels = out.labels("sandq_identity_requests_total", name)
        out.value("sandq_identity_requests_total", meter.requests, labels)
        out.value("sandq_identity_request_bytes_total", meter.bytes, labels)
        out.value("sandq_identity_refused_total", meter.refused, labels)
        out.value("sandq_identity_connections", meter.connections, labels)
    largest = nlargest(IDENTITIES, held.items(), key=lambda item: item[1].stored_bytes)
    for name, holds in sorted(largest):
        labels = out.labels("sandq_identity_stored_bytes", name)
        out.value("sandq_identity_stored_bytes", holds.stored_bytes, labels)
        out.value("sandq_identity_pending_messages", holds.pending_messages, labels)


def write_tls(certificates: Certificates, handshakes: Handshakes, out: Exposition) -> None:
    """Write the metrics of certificates and handshakes."""
    now = datetime.datetime.now(datetime.UTC)
    for setting, at in certificates.ends():
        labels = out.labels("sandq_tls_certificate_expires_seconds", setting)
        out.value("sandq_tls_certificate_expires_seconds", (at - now).total_seconds(), labels)
    out.value("sandq_tls_certificates_unusable", certificates.error is not None)
    out.value("sandq_tls_certificate_reloads_total", certificates.reloads)
    results = {"done": handshakes.done, "failed": handshakes.failed, "refused": handshakes.refused}
    for result, count in results.items():
        out.value("sandq_tls_handshakes_total", count, out.labels("sandq_tls_handshakes_total", result))
    out.value("sandq_tls_handshake_cpu_seconds_total", handshakes.cpu_s)
