"""Membership of a node in its cluster: discovery of other nodes, messages between nodes, placement of replicas."""

from __future__ import annotations

import dataclasses

import trio

import sandq
from sandq.broker.bootstrap.bootstrap import Bootstrap, mode_of
from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.joining import Joining
from sandq.broker.broker import Broker
from sandq.broker.cluster.cluster import Cluster
from sandq.broker.cluster.dispatch import PeerDispatch
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.controller.feature_level import FeatureLevel
from sandq.broker.controller.rebalancer import Rebalancer
from sandq.broker.controller.reports import Reports
from sandq.broker.event_loop import Signal
from sandq.broker.owner_usage import OwnerUsage
from sandq.gossip.tags import judge_of, node_tags
from sandq.membership.discovery import Discovery
from sandq.model.config import NodeConfig
from sandq.model.ports import socket_path
from sandq.node.context import Context
from sandq.node.delivery import Delivery
from sandq.node.replication import Replication
from sandq.node.storage import Storage
from sandq.schedules.zones import data_version


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Membership of a node in its cluster."""

    discovery: Discovery
    directory: PeerDirectory
    dispatch: PeerDispatch
    rebalancer: Rebalancer
    cluster: Cluster
    usage: OwnerUsage

    async def take_part(self, broker: Broker, nursery: trio.Nursery) -> None:
        """Form or join the cluster, or resume membership.

        Then open the replicas that the metadata assigns to this node."""
        beginning = await self.cluster.formed()
        metadata = broker.node_log.open_metadata(beginning.members, beginning.metadata_index)
        await broker.start(metadata)
        await self.cluster.take_part(metadata)
        nursery.start_soon(self.cluster.run, metadata)
        nursery.start_soon(self.rebalancer.run)
        nursery.start_soon(self.usage.run)


def open_membership(
    context: Context, storage: Storage, replication: Replication, delivery: Delivery, addresses: dict[str, str]
) -> Membership:
    """Create the membership of a node that listens at `addresses`. Raises StartupError."""
    config, broker, links, this_node = context.config, delivery.broker, replication.links, replication.this_node
    node_log, runner, catalog = replication.node_log, replication.runner, broker.catalog
    discovery, changed = _discovery(context, storage, replication, addresses), Signal()
    directory = PeerDirectory(
        cluster=config.cluster.name,
        this_node=this_node,
        links=links,
        known=storage.known,
        membership=discovery.membership,
        node_log=node_log,
        runner=runner,
        catalog=catalog,
        changed=changed,
    )
    joining = Joining(this_node.name, links)
    controller = _controller(context, replication, broker, directory, joining)
    reports = Reports(node_log, links, controller, changed)
    bootstrap = _bootstrap(config, replication, directory, joining)
    usage = OwnerUsage(catalog, links, runner, broker.clock.now_ms)
    dispatch = PeerDispatch(
        node_log=node_log,
        links=links,
        this_node=this_node,
        routes=replication.routes,
        progress=replication.progress,
        barrier=replication.barrier,
        clocks=replication.clocks,
        controller=controller,
        sick_peers=replication.sick_peers,
        digests=delivery.digests,
        limits=delivery.limit_shares,
        limit_pauses=delivery.limit_pauses,
        outbox=delivery.outbox,
        pauses=delivery.pauses,
        restores=delivery.restores,
        log_reads=delivery.log_reads,
        usage=usage,
        shut_replicas=replication.shut_replicas,
        directory=directory,
        joining=joining,
        bootstrap=bootstrap,
        snapshots=replication.snapshots,
        changed=changed,
    )
    cluster = Cluster(
        mode=mode_of(config),
        this_node=this_node,
        files=storage.files,
        links=links,
        node_log=node_log,
        runner=runner,
        directory=directory,
        bootstrap=bootstrap,
        controller=controller,
        changed=changed,
        on_joined=discovery.refresh_tags,
    )
    rebalancer = Rebalancer(
        node_log,
        catalog,
        links=links,
        health=replication.health,
        shut_replicas=replication.shut_replicas,
        reports=reports,
    )
    return Membership(
        discovery=discovery,
        directory=directory,
        dispatch=dispatch,
        rebalancer=rebalancer,
        cluster=cluster,
        usage=usage,
    )


def _discovery(context: Context, storage: Storage, replication: Replication, addresses: dict[str, str]) -> Discovery:
    config, this_node, secrets = context.config, replication.this_node, context.secrets
    is_meeting = mode_of(config) == "meets"

    def tags() -> dict[str, str]:
        return node_tags(
            node=this_node.name,
            cluster=config.cluster.name,
            cluster_uuid=this_node.cluster_uuid,
            store_uuid=this_node.own.store_uuid,
            zone=config.node.zone,
            version=sandq.__version__,
            zone_data=data_version(),
            addresses={kind: at for kind, at in addresses.items() if socket_path(at) is None},  # a path may be too long
            # A node founds the cluster if discovery finds none. Once it belongs to a cluster, it is no founder.
            founder=is_meeting and this_node.cluster_uuid is None,
        )

    return Discovery(
        config,
        secrets=None if secrets is None else lambda: secrets.current,
        tags=tags,
        judge=judge_of(config.cluster.name, lambda: this_node.cluster_uuid),
        files=storage.files,
        now_ms=context.clock.now_ms,
        on_round_trip=context.stats.round_trips.observe,
    )


def _controller(
    context: Context, replication: Replication, broker: Broker, directory: PeerDirectory, joining: Joining
) -> ClusterController:
    cluster = context.config.cluster
    return ClusterController(
        joining=joining,
        directory=directory,
        routes=replication.routes,
        nodes=broker.administration.nodes,
        health=replication.health,
        now_ms=context.clock.now_ms,
        reassign_after_ms=cluster.reassign_after_ms,
        partitions_per_node=context.config.limits.partitions_per_node,
        feature_level=FeatureLevel(directory, rises_by_itself=cluster.finalize == "auto"),
    )


def _bootstrap(config: NodeConfig, replication: Replication, directory: PeerDirectory, joining: Joining) -> Bootstrap:
    return Bootstrap(
        mode=mode_of(config),
        this_node=replication.this_node,
        named=[peer.id for peer in config.cluster.peers],
        joining=joining,
        links=replication.links,
        progress=replication.progress,
        directory=directory,
    )
