"""A node that runs, as tests, `sandq.testing` and the command see it."""

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
    """Where a started node can be reached."""

    client_host: str
    client_port: int
    http: Address | None
    sql: Address | None
    """None: not served."""
    data_dir: Path
    broker: Broker
    metrics: Metrics
    digests: ReplicaDigests
    identities: Identities
    quotas: QuotaMeters
    usage: OwnerUsage
    restart: trio.Event
    """Set when the node takes nothing more for want of room, and would again if it were started anew."""
