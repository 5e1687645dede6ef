"""Numbers of TLS: when certificates end, and what handshakes come to."""

from __future__ import annotations

import datetime

from sandq.server.metrics.text import Exposition
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates


def tell_tls(certificates: Certificates, handshakes: Handshakes, told: Exposition) -> None:
    """Tell of those of a node."""
    now = datetime.datetime.now(datetime.UTC)
    for setting, at in certificates.ends():
        labels = told.labels("sandq_tls_certificate_expires_seconds", setting)
        told.value("sandq_tls_certificate_expires_seconds", (at - now).total_seconds(), labels)
    told.value("sandq_tls_certificates_unusable", certificates.error is not None)
    told.value("sandq_tls_certificate_reloads_total", certificates.reloads)
    results = {"done": handshakes.done, "failed": handshakes.failed, "refused": handshakes.refused}
    for result, count in results.items():
        told.value("sandq_tls_handshakes_total", count, told.labels("sandq_tls_handshakes_total", result))
    told.value("sandq_tls_handshake_cpu_seconds_total", handshakes.cpu_s)
