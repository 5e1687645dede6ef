"""What a node is made of, and where it can be reached."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

import trio

from sandq.broker.access.authenticator import Authenticator
from sandq.broker.access.identities import Identities
from sandq.broker.backups.log_reads import LogReads
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.broker import Broker
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.replica_digests import ReplicaDigests
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.owner_usage import OwnerUsage
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import MetadataBarrier
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.secret import Secrets
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.broker.stats.slo import LatenessSlo
from sandq.model.config import NodeConfig
from sandq.model.config_schema import Address
from sandq.node.tls import NodeTls
from sandq.server.debug.loop_watch import LoopWatch
from sandq.server.gateway_proof import GatewayKeys
from sandq.server.metrics.metrics import Metrics
from sandq.server.output import Sender
from sandq.server.quota_meters import QuotaMeters
from sandq.storage.files import Files
from sandq.storage.known_peers import KnownPeers


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a node is made of, whether it takes part in a cluster yet or not."""

    config: NodeConfig
    data_dir: Path
    files: Files
    secrets: Secrets | None
    gateway_secrets: Secrets | None
    gateway_keys: GatewayKeys
    this_node: ThisNode
    known: KnownPeers
    links: PeerLinks
    clocks: ClockKeeper
    node_log: NodeLog
    runner: Runner
    progress: MetadataProgress
    barrier: MetadataBarrier
    sweeper: StoreSweeper
    snapshots: Snapshots
    sick_peers: SickPeers
    health: NodeHealth
    scrubber: Scrubber
    digests: ReplicaDigests
    limit_shares: LimitShares
    outbox: OutboxSender
    restores: WholeRestores
    log_reads: LogReads
    broker: Broker
    sender: Sender
    push_tls: ssl.SSLContext | None
    tls: NodeTls | None
    timers: Timers
    slo: LatenessSlo
    authenticator: Authenticator
    watch: LoopWatch | None
    shut_replicas: ShutReplicas
