"""Shared state of the subsystems of a node: configuration, clock, feature levels, certificates and secrets."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable
from typing import TypedDict

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.peers.secret import Secrets
from sandq.broker.stats.node_stats import NodeStats
from sandq.model.config import NodeConfig
from sandq.model.features import KNOWN, Levels
from sandq.node.started import Started
from sandq.node.tls import NodeTls
from sandq.push.pusher import tls_of
from sandq.server import process_tuning
from sandq.server.connection import Gate
from sandq.server.debug.loop_watch import LoopWatch
from sandq.server.gateway_proof import SETTING as GATEWAY_SETTING
from sandq.server.gateway_proof import GatewayKeys
from sandq.storage.stores import LevelStores, Stores


class NodeOptions(TypedDict, total=False):
    """Options that tests and `sandq.testing` use to replace parts of a node, and that the `sandq` command adds."""

    stores: Callable[..., Stores]
    """Opens the stores. Tests use it for stores in memory, and for faulty ones."""
    clock: GuardedClock
    timers: Callable[[GuardedClock], Timers]
    gate: Gate
    """Awaited after each receive from a client, before the bytes are parsed."""
    levels: Levels
    """Feature levels that the node supports. Tests use it to run nodes of another version."""
    abandon: Callable[[], None]
    """Ends the process, and does not return. Called last if a thread hangs in a disk operation.

    If it is not given, StorageFailed is raised, and this process must not open the data directory again."""
    watch: LoopWatch
    """Records stalls of the event loop of this process. The caller that creates the watch also runs it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Shared state of the subsystems of a node."""

    started: Started
    config: NodeConfig
    """The configuration of `started`, with fewer connections if this process may not open enough files."""
    open_stores: Callable[..., Stores]
    clock: GuardedClock
    timers: Timers
    levels: Levels
    stats: NodeStats
    secrets: Secrets | None
    """Secrets that nodes share with each other; None: no secret file is configured."""
    gateway_secrets: Secrets | None
    """Secrets that nodes share with gateways; None: no secret file is configured."""
    gateway_keys: GatewayKeys
    tls: NodeTls | None
    """None: the node does not use TLS."""
    push_tls: ssl.SSLContext | None
    gate: Gate | None
    abandon: Callable[[], None] | None
    watch: LoopWatch | None


def context_of(
    started: Started,
    *,
    stores: Callable[..., Stores] = LevelStores,
    clock: GuardedClock | None = None,
    timers: Callable[[GuardedClock], Timers] = Timers,
    gate: Gate | None = None,
    levels: Levels = KNOWN,
    abandon: Callable[[], None] | None = None,
    watch: LoopWatch | None = None,
) -> Context:
    """Create the context of a node. Parameters: see `NodeOptions`.

    Raises StartupError if a file cannot be used."""
    config = started.config
    clock = clock or GuardedClock(max_drift_ms=config.clock.max_drift_ms, slew_ppm=config.clock.slew_ppm)
    secret_file, gateway_file = config.cluster.secret_file, config.http.gateway_secret_file
    secrets = Secrets(secret_file) if secret_file is not None else None
    gateway_secrets = Secrets(gateway_file, GATEWAY_SETTING) if gateway_file is not None else None
    return Context(
        started=started,
        config=config.model_copy(update={"limits": process_tuning.limits_within_files(config.limits)}),
        open_stores=stores,
        clock=clock,
        timers=timers(clock),
        levels=levels,
        stats=NodeStats(config.slo.lateness_ms / 1000),
        secrets=secrets,
        gateway_secrets=gateway_secrets,
        gateway_keys=GatewayKeys(gateway_secrets, secrets),
        tls=NodeTls.of(config),
        push_tls=tls_of(config.push.ca_file),
        gate=gate,
        abandon=abandon,
        watch=watch,
    )
