"""A running node, as tests, `sandq.testing` and the `sandq` command see it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import trio

from sandq.broker.access.identities import Identities
from sandq.broker.broker import Broker
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.owner_usage import OwnerUsage
from sandq.model.config_schema import Address
from sandq.server.metrics.metrics import Metrics
from sandq.server.quota_meters import QuotaMeters


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Addresses and components of a node that serves."""

    client_host: str
    client_port: int
    http: Address | None
    sql: Address | None
    """Address of the HTTP or SQL listener; None: not served."""
    data_dir: Path
    broker: Broker
    metrics: Metrics
    digests: ReplicaDigests
    identities: Identities
    quotas: QuotaMeters
    usage: OwnerUsage
    restart: trio.Event
    """Set when a full disk has stopped the stores and has space again: only a restart makes them accept writes."""
