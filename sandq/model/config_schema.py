"""The configuration of a node: every key, its range and its default (docs/configuration.md says the purpose of each).

    node     {id, data_dir, advertise_host, zone, weight}     identity and placement of this node
    listen   {client, http, peer, gossip, sql}                its addresses, "host:port"
    cluster  {name, bootstrap, membership, seeds, peers, secret_file, reassign_after, finalize}
    gossip   {profile, encrypt, keys_file, ...}               see config_gossip
    serf     {rpc, auth_file}                                 see config_gossip
    http     {allowed_hosts, allowed_origins, gateway_secret_file}   its callers
    sql      {connections, queries, timeout, ...}             see config_sql
    backup   {url, key_file, identities}                      see config_backup
    push     {allow, allow_http, ports, ca_file}              see config_push
    security {authentication, insecure, certificate_identities}   see config_security
    jwt      {issuer, audience, keys_file, ...}               see config_security
    audit    {enabled, file_bytes, files}                     see config_security
    tls      {cert_file, key_file, ca_file, crl_file, client, http, sql, peer, ...}   see config_tls
    storage  {segment_bytes, checkpoint_bytes, checkpoint_interval, snapshot_rate, scrub_rate, reserve_bytes}
    clock    {max_drift, slew_ppm}
    health   {stall_after, request_timeout}
    slo      {lateness, target, window}                       see config_slo
    auto_create_topics {patterns, kind, partitions, replicas, settings}   see auto_create
    limits   {any field of limits.Limits}
    delivery {lease_ahead}
    shutdown_grace

A check that needs two keys is a field validator of the later key, so that its mistake is reported together with all
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
)

from sandq.model import schema
from sandq.model.auto_create import AutoCreateSection
from sandq.model.config_backup import BackupSection
from sandq.model.config_gossip import GossipSection, SerfSection
from sandq.model.config_push import PushSection
from sandq.model.config_security import AuditSection, JwtSection, SecuritySection
from sandq.model.config_slo import SloSection
from sandq.model.config_sql import SqlSection
from sandq.model.config_tls import REQUIRE, TlsSection
from sandq.model.config_types import Address as Address
from sandq.model.config_types import (
    FilePath,
    ListenAddress,
    ListenAddressOrNone,
    PeerAddress,
    origin,
    split,
    text,
)
from sandq.model.config_types import is_loopback as is_loopback
from sandq.model.limits import DEFAULT, Limits
from sandq.model.ports import CLIENT_PORT, GOSSIP_PORT, HTTP_PORT, LOCAL_HOST, PEER_PORT

_DAY_MS = 86_400_000
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
WEIGHT_MOST = 1000
_EVERY_ADDRESS = ("0.0.0.0", "::")


class NodeSection(schema.Section):
    """Identity and placement of this node."""

    id: Annotated[str, schema.name("node")] = "node1"
    data_dir: FilePath = Path("sandq-data")
    advertise_host: Annotated[str | None, BeforeValidator(text)] = None
    zone: Annotated[str, schema.name("zone")] = "default"
    weight: Annotated[int, schema.integer(1, WEIGHT_MOST)] = 1
    """Share of replicas relative to other nodes: weight 2 gets twice the number of replicas of weight 1."""


class ListenSection(schema.Section):
    """Addresses on which this node listens. Port 0 means any free port. `http: none` disables HTTP. SQL is disabled
    unless `sql` is set."""

    client: ListenAddress = Address(LOCAL_HOST, CLIENT_PORT)
    http: ListenAddressOrNone = Address(LOCAL_HOST, HTTP_PORT)
    peer: ListenAddress = Address(LOCAL_HOST, PEER_PORT)
    gossip: ListenAddress = Address(LOCAL_HOST, GOSSIP_PORT)
    sql: ListenAddressOrNone = None

    @field_validator("client", "http", "peer", "gossip", "sql")
    @classmethod
    def _not_twice(cls, address: Address | None, info: ValidationInfo) -> Address | None:
        """Check that no two ports have the same address."""
        for name, other in info.data.items():
            if address is not None and address == other and address.port:
                raise schema.mistake(f"{address} is the address of listen.{name} already")
        return address


class PeerSection(schema.Section):
    """Another node, for `membership: static`."""

    id: Annotated[str, schema.name("node")]
    peer: PeerAddress
    client: PeerAddress
    http: PeerAddress


class ClusterSection(schema.Section):
    """How this node discovers the other nodes, and whether it may create the cluster (`bootstrap`)."""

    name: Annotated[str, schema.name("cluster")] = "sandq"
    membership: Literal["gossip", "serf", "static"] = "gossip"
    seeds: Annotated[list[PeerAddress], BeforeValidator(split)] = Field(default=[], validate_default=True)
    peers: list[PeerSection] = Field(default=[], validate_default=True)
    secret_file: Annotated[Path | None, BeforeValidator(text)] = None
    reassign_after_ms: Annotated[int, schema.duration(1000, 7 * _DAY_MS)] = Field(
        default=300_000, alias="reassign_after"
    )
    finalize: Literal["auto", "manual"] = "auto"
    """auto: the feature level rises once every node supports a higher level. manual: it rises when an operator asks for
    it."""
    # This field is last, so that its validator sees the seeds and the peers.
    bootstrap: bool = Field(default=False, validate_default=True)

    @field_validator("seeds")
    @classmethod
    def _seeds_of_gossip(cls, seeds: list[Address], info: ValidationInfo) -> list[Address]:
        """Check that seeds are given only with gossip."""
        if seeds and info.data.get("membership") != "gossip":
            raise schema.mistake(
                "seeds are of membership: gossip; with static, name the peers; with serf, its agent knows the others"
            )
        return seeds

    @field_validator("peers")
    @classmethod
    def _peers_of_static(cls, peers: list[PeerSection], info: ValidationInfo) -> list[PeerSection]:
        """Check that peers are given only with static membership, each once."""
        if peers and info.data.get("membership") != "static":
            raise schema.mistake("peers are of membership: static; with gossip, name the seeds")
        ids = [peer.id for peer in peers]
        twice = sorted({peer for peer in ids if ids.count(peer) > 1})
        if twice:
            raise schema.mistake(f"there twice: {', '.join(twice)}")
        return peers

    @field_validator("bootstrap")
    @classmethod
    def _founds_or_joins(cls, bootstrap: bool, info: ValidationInfo) -> bool:
        """Check that the node founds a cluster, or knows the nodes of one to join."""
        known = info.data
        if bootstrap or "seeds" not in known or "peers" not in known or known["seeds"] or known["peers"]:
            return bootstrap
        if known.get("membership") == "serf":
            return bootstrap  # its agent finds the others
        others = "peers" if known.get("membership") == "static" else "seeds"
        raise schema.mistake(
            f"neither bootstrap nor {others}: "
            f"say bootstrap: true to found a cluster, or name the {others} of one to join"
        )


class HttpSection(schema.Section):
    """The secret of gateways, and the hosts and browser origins that the HTTP API accepts in addition to its own
    names."""

    removed: ClassVar[Mapping[str, str]] = {
        "workers": "removed: a node always serves HTTP from a process that it starts; delete the key"
    }
    allowed_hosts: Annotated[list[Annotated[str, BeforeValidator(text)]], BeforeValidator(split)] = Field(default=[])
    allowed_origins: Annotated[list[Annotated[str, BeforeValidator(origin)]], BeforeValidator(split)] = Field(
        default=[]
    )
    gateway_secret_file: Annotated[Path | None, BeforeValidator(text)] = None
    """File with a secret that nodes and gateways share. With it, nodes trust a gateway to name the caller of each
    request."""


class StorageSection(schema.Section):
    """The write-ahead log, its checkpoints, and the rates of snapshots and of scrubbing."""

    segment_bytes: Annotated[int, schema.size(64 * _KIB, _GIB)] = 64 * _MIB
    checkpoint_bytes: Annotated[int, schema.size(64 * _KIB, 16 * _GIB)] = 32 * _MIB
    checkpoint_interval_ms: Annotated[int, schema.duration(1000, _DAY_MS)] = Field(
        default=60_000, alias="checkpoint_interval"
    )
    snapshot_rate: Annotated[int, schema.size(_MIB, 16 * _GIB)] = 64 * _MIB
    """Bytes per second."""
    scrub_rate: Annotated[int, schema.size(0, _GIB)] = _MIB
    """Bytes per second; 0 turns scrubbing off."""
    reserve_bytes: Annotated[int, schema.size(0, 1024 * _GIB)] = 256 * _MIB


class ClockSection(schema.Section):
    """The guarded clock."""

    max_drift_ms: Annotated[int, schema.duration(1, 3_600_000)] = Field(default=500, alias="max_drift")
    slew_ppm: Annotated[int, schema.integer(1, 100_000)] = 500


class HealthSection(schema.Section):
    """Timeouts after which a node gives up on work that makes no progress."""

    stall_after_ms: Annotated[int, schema.duration(1000, 600_000)] = Field(default=5000, alias="stall_after")
    request_timeout_ms: Annotated[int, schema.duration(1000, 3_600_000)] = Field(
        default=60_000, alias="request_timeout"
    )


class DeliverySection(schema.Section):
    """How messages are delivered."""

    lease_ahead_ms: Annotated[int, schema.duration(0, 50)] = Field(default=5, alias="lease_ahead")


_MOST_ENTRY = 48 * _MIB
"""Maximum size of a request, or of requests that are merged into one Raft entry, in bytes.

The entry must fit into a frame between nodes, together with the other data of the frame (`broker/peers/stream.py`). A
larger entry would never reach another replica."""
# Upper bounds that formats and links impose on the configured limits.
LIMIT_BOUNDS = {
    "frame_bytes": _MOST_ENTRY,
    "entry_bytes": _MOST_ENTRY,
    "batch_bytes": DEFAULT.batch_bytes,
    "batch_messages": DEFAULT.batch_messages,
    "entry_messages": DEFAULT.entry_messages,
    "partitions_per_topic": DEFAULT.partitions_per_topic,
    "memory_bytes": 1024 * _GIB,
    "delay_days": 1_000_000,
}
_LEAST_MEMORY = 256 * _MIB
"""Minimum of `memory_bytes`: a frame of the largest size must fit into the part of this memory that is reserved for
frames."""


def _fits(value: int, info: ValidationInfo) -> int:
    """Check that a message fits into a batch, and a batch into a frame, with space for the data around it."""
    inner = {"batch_bytes": "message_bytes", "frame_bytes": "batch_bytes"}[str(info.field_name)]
    if value < info.data.get(inner, 0):
        raise schema.mistake(f"{value} is less than {inner}, which must fit in it")
    return value


def _limits_section() -> type[schema.Section]:
    """Return the section `limits`: one setting for each field of `Limits`."""
    fields: dict[str, Any] = {}
    for limit in dataclasses.fields(Limits):
        most = LIMIT_BOUNDS.get(limit.name, _GIB)
        least = _LEAST_MEMORY if limit.name == "memory_bytes" else 1
        checked = schema.size(least, most) if "bytes" in limit.name else schema.integer(1, most)
        fields[limit.name] = (Annotated[int, checked], Field(default=limit.default, validate_default=True))
    fits: dict[str, Any] = {"fits": field_validator("batch_bytes", "frame_bytes")(_fits)}
    return create_model("LimitsSection", __base__=schema.Section, __validators__=fits, **fields)


class NodeConfig(schema.Section):
    """The whole configuration of a node. Made by `config.load_config`."""

    node: NodeSection = NodeSection()
    listen: ListenSection = Field(default=ListenSection(), validate_default=True)
    cluster: ClusterSection
    gossip: GossipSection = Field(default=GossipSection(), validate_default=True)
    serf: SerfSection = SerfSection()
    http: HttpSection = HttpSection()
    sql: SqlSection = SqlSection()
    backup: BackupSection = BackupSection()
    push: PushSection = Field(default=PushSection(), validate_default=True)
    tls: TlsSection = TlsSection()
    # This field comes after all fields that its validator reads.
    security: SecuritySection = Field(default=SecuritySection(), validate_default=True)
    jwt: JwtSection = Field(default=JwtSection(), validate_default=True)
    audit: AuditSection = AuditSection()
    storage: StorageSection = StorageSection()
    clock: ClockSection = ClockSection()
    health: HealthSection = HealthSection()
    slo: SloSection = SloSection()
    auto_create_topics: AutoCreateSection = AutoCreateSection()
    limits: Annotated[Limits, schema.AsSection(_limits_section(), Limits)] = DEFAULT
    delivery: DeliverySection = DeliverySection()
    shutdown_grace_ms: Annotated[int, schema.duration(0, 3_600_000)] = Field(default=30_000, alias="shutdown_grace")

    @field_validator("listen")
    @classmethod
    def _reachable(cls, listen: ListenSection, info: ValidationInfo) -> ListenSection:
        """Check that other nodes can reach this node: an address such as 0.0.0.0 is not one to connect to."""
        node = info.data.get("node")
        if node is not None and node.advertise_host is None and listen.client.host in _EVERY_ADDRESS:
            raise schema.mistake(
                f"listening on {listen.client.host} needs node.advertise_host, the host that others shall connect to"
            )
        return listen

    @field_validator("cluster")
    @classmethod
    def _secret_beyond_this_machine(cls, cluster: ClusterSection, info: ValidationInfo) -> ClusterSection:
        """Check that the nodes share a secret if other machines can reach the peer port."""
        listen = info.data.get("listen")
        if listen is None or cluster.secret_file is not None:
            return cluster
        if is_beyond(listen.peer.host):
            raise schema.mistake(
                f"listen.peer on {listen.peer.host} needs secret_file, the secret that all nodes share; "
                "without one, listen on 127.0.0.1"
            )
        return cluster

    @field_validator("gossip")
    @classmethod
    def _keys_beyond_this_machine(cls, gossip: GossipSection, info: ValidationInfo) -> GossipSection:
        """Check that gossip has keys if other machines can reach its port, or if encryption is asked for."""
        listen, cluster = info.data.get("listen"), info.data.get("cluster")
        if listen is None or cluster is None or cluster.membership != "gossip" or not gossip.encrypt:
            return gossip
        host = listen.gossip.host
        keys = gossip.keys_file is not None or cluster.secret_file is not None
        if not keys and gossip.encrypt is not True:
            raise schema.mistake(
                f"encrypt: {gossip.encrypt} needs keys: cluster.secret_file (keys are made of it) or gossip.keys_file"
            )
        if not keys and is_beyond(host):
            raise schema.mistake(
                f"listen.gossip on {host} needs cluster.secret_file (keys are made of it) or gossip.keys_file; "
                "in a network that anybody may write to who is in it, say gossip.encrypt: false"
            )
        return gossip

    @field_validator("cluster")
    @classmethod
    def _others_only(cls, cluster: ClusterSection, info: ValidationInfo) -> ClusterSection:
        """Check that the peers do not include the node itself."""
        node = info.data.get("node")
        if node is not None and any(peer.id == node.id for peer in cluster.peers):
            raise schema.mistake(f"peers are the other nodes, and {node.id} is this one")
        return cluster

    @field_validator("security")
    @classmethod
    def _secure_beyond_this_machine(cls, security: SecuritySection, info: ValidationInfo) -> SecuritySection:
        """Check that ports that other machines can reach have TLS and authentication."""
        data = info.data
        if security.insecure or not data.keys() >= {"listen", "cluster", "gossip", "tls"}:
            return security
        open_ports = _exposed(data["listen"], data["cluster"], data["gossip"], data["tls"], security)
        if open_ports:
            raise schema.mistake(
                f"{'; '.join(open_ports)}. Turn on what is missing (docs/security.md), or, in a private network, "
                "set security.insecure: true"
            )
        return security

    @property
    def exposed(self) -> list[str]:
        """Ports of this node that other machines can reach without TLS, encryption or authentication: one text for
        each port."""
        return _exposed(self.listen, self.cluster, self.gossip, self.tls, self.security)

    @property
    def advertise_host(self) -> str:
        """The host under which clients and peers reach this node."""
        return self.node.advertise_host or self.listen.client.host


def is_beyond(host: str) -> bool:
    """Return whether other machines can reach a listener on this host. Names other than `localhost` count as reachable,
    because they are not resolved here."""
    return host.lower() != "localhost" and not is_loopback(host)


def _exposed(
    listen: ListenSection, cluster: ClusterSection, gossip: GossipSection, tls: TlsSection, security: SecuritySection
) -> list[str]:
    """Return a line for each port that other machines can reach without TLS or without authentication."""
    ports = {"client": (listen.client, tls.client), "http": (listen.http, tls.http), "sql": (listen.sql, tls.sql)}
    if cluster.peers or cluster.membership != "static":
        ports["peer"] = listen.peer, tls.peer
    found = []
    for name, (address, mode) in ports.items():
        if address is None or not is_beyond(address.host):
            continue
        missing = [] if mode == REQUIRE else [f"TLS (tls.{name}: require)"]
        if name != "peer" and security.authentication != "require":
            missing.append("authentication (security.authentication: require)")
        if missing:
            found.append(f"listen.{name} on {address.host} without {' and '.join(missing)}")
    if cluster.membership == "gossip" and gossip.encrypt is not True and is_beyond(listen.gossip.host):
        found.append(f"listen.gossip on {listen.gossip.host} without encryption (gossip.encrypt: true)")
    return found
