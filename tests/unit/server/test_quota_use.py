"""Tests of the reported quota usage: for a bounded number of identities, in views and in metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from sandq.broker.owner_usage import Held
from sandq.model.quotas import NO_QUOTA
from sandq.server.handlers.access import use_of
from sandq.server.metrics.catalog import EVERY
from sandq.server.metrics.node import IDENTITIES, write_quotas
from sandq.server.metrics.text import Exposition
from sandq.server.quota_meters import QuotaMeters


def test_use_is_that_of_the_cluster_and_of_this_node() -> None:
    meters = QuotaMeters(lambda: 0.0)
    meters.connect("token:a", NO_QUOTA)
    meters.take("token:a", NO_QUOTA, 3, 700)
    topics: list[Any] = [SimpleNamespace(owner=owner, partitions=[1, 2]) for owner in ("token:a", "token:a", None, "b")]
    found = use_of({"token:a", "token:c"}, topics, {"token:a": Held(5, 6)}, meters)
    assert found["token:a"] == {
        **{"topics": 2, "partitions": 4, "stored_bytes": 5, "pending_messages": 6},
        **{"connections": 1, "requests": 3, "bytes": 700},
    }
    assert set(found["token:c"].values()) == {0}


def test_metrics_have_a_bounded_number_of_identities() -> None:
    meters = QuotaMeters(lambda: 0.0)
    for number in range(IDENTITIES + 50):
        meters.take(f"token:{number}", NO_QUOTA, number, 0)
    exposition = Exposition(EVERY, openmetrics=False)
    write_quotas(meters, {f"token:{number}": Held(number, 0) for number in range(IDENTITIES + 50)}, exposition)
    text = exposition.text(generate_latest(CollectorRegistry())).decode()
    rows = [line for line in text.splitlines() if line.startswith("sandq_identity_requests_total{")]
    assert len(rows) == IDENTITIES
    assert 'sandq_identity_requests_total{identity="token:149"} 149' in text
    assert 'sandq_identity_stored_bytes{identity="token:149"} 149' in text
    assert '"token:0"' not in text
