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
    """Address of the HTTP listener; None: the node does not serve HTTP."""
    sql: Address | None
    """Address of the SQL listener; None: the node does not serve SQL."""
    data_dir: Path
    broker: Broker
    metrics: Metrics
    digests: ReplicaDigests
    identities: Identities
    quotas: QuotaMeters
    usage: OwnerUsage
    restart: trio.Event
    """Set when a full disk has space again after it stopped the stores: they accept writes only after a restart."""
