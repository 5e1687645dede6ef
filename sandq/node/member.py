"""What makes a node one of its cluster: who the others are, and what is said between them."""

from __future__ import annotations

import dataclasses

import trio

import sandq
from sandq.broker.bootstrap.bootstrap import Bootstrap, way_of
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
from sandq.node.parts import Parts
from sandq.schedules.zones import data_version


def make_discovery(parts: Parts, addresses: dict[str, str]) -> Discovery:
    config, this_node, secrets = parts.config, parts.this_node, parts.secrets
    is_meeting = way_of(config) == "meets"

    def tags() -> dict[str, str]:
        return node_tags(
            node=this_node.name,
            cluster=config.cluster.name,
            cluster_uuid=this_node.cluster_uuid,
            store_uuid=this_node.own.store_uuid,
            zone=config.node.zone,
            version=sandq.__version__,
            zone_data=data_version(),
            addresses=addresses,
            # It is to found the cluster, unless it finds one, and has not yet.
            founder=is_meeting and this_node.cluster_uuid is None,
        )

    return Discovery(
        config,
        secrets=None if secrets is None else lambda: secrets.current,
        tags=tags,
        judge=judge_of(config.cluster.name, lambda: this_node.cluster_uuid),
        files=parts.files,
        now_ms=parts.broker.clock.now_ms,
        on_round_trip=parts.broker.stats.round_trips.observe,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """What makes a node one of its cluster."""

    directory: PeerDirectory
    dispatch: PeerDispatch
    rebalancer: Rebalancer
    cluster: Cluster
    usage: OwnerUsage


def make_member(parts: Parts, discovery: Discovery) -> Member:
    config, broker, links, this_node = parts.config, parts.broker, parts.links, parts.this_node
    node_log, runner, catalog, routes = parts.node_log, parts.runner, parts.broker.catalog, parts.broker.routes
    changed = Signal()
    directory = PeerDirectory(
        cluster=config.cluster.name,
        this_node=this_node,
        links=links,
        known=parts.known,
        membership=discovery.membership,
        node_log=node_log,
        runner=runner,
        catalog=catalog,
        changed=changed,
    )
    joining = Joining(this_node.name, links)
    controller = ClusterController(
        joining=joining,
        linked=directory.linked,
        seen=directory.alive,
        is_led=lambda group: routes.leader(group) is not None and not broker.administration.nodes.is_rebuilding(group),
        may_lead=parts.health.may_lead,
        sick=parts.health.sick,
        now_ms=broker.clock.now_ms,
        reassign_after_ms=config.cluster.reassign_after_ms,
        partitions_per_node=config.limits.partitions_per_node,
        feature_level=FeatureLevel(directory.linked, rises_by_itself=config.cluster.finalize == "auto"),
    )
    reports = Reports(node_log, links, controller, changed)
    way = way_of(config)
    bootstrap = Bootstrap(
        way=way,
        own_node=this_node.name,
        named=[peer.id for peer in config.cluster.peers],
        belongs=lambda: this_node.cluster_uuid,
        joining=joining,
        send=links.send,
        links=lambda: links.up,
        ready=lambda: parts.progress.others,
        seen=directory.seen,
    )
    usage = OwnerUsage(catalog, links.send, lambda: list(links.up), broker.ask, broker.clock.now_ms)
    dispatch = PeerDispatch(
        node_log=node_log,
        links=links,
        this_node=this_node,
        routes=routes,
        progress=parts.progress,
        barrier=parts.barrier,
        clocks=parts.clocks,
        controller=controller,
        sick_peers=parts.sick_peers,
        digests=parts.digests,
        limits=parts.limit_shares,
        outbox=parts.outbox,
        restores=parts.restores,
        log_reads=parts.log_reads,
        usage=usage,
        shut_replicas=parts.shut_replicas,
        outside=lambda *frame: joining.on_frame(*frame) or bootstrap.on_frame(*frame),
        on_stream=parts.snapshots.receive,
        changed=changed,
    )
    cluster = Cluster(
        way=way,
        this_node=this_node,
        files=parts.files,
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
        node_log, catalog, broker.up, parts.health.may_lead, reports.tell_settled, parts.shut_replicas.is_shut
    )
    return Member(directory, dispatch, rebalancer, cluster, usage)


async def take_part(member: Member, broker: Broker, serving: trio.Nursery) -> None:
    """Be a member of the cluster: form it, or go on in it."""
    beginning = await member.cluster.formed()
    metadata = broker.node_log.open_metadata(beginning.members, beginning.metadata_index)
    await broker.start(metadata)
    await member.cluster.take_part(metadata)
    serving.start_soon(member.cluster.run, metadata)
    serving.start_soon(member.rebalancer.run)
    serving.start_soon(member.usage.run)
