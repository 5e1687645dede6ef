"""Replication of a node: links to the other nodes, the write-ahead log of all Raft groups, and the health of both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from functools import partial

import trio

import sandq
from sandq.broker.bootstrap.bootstrap import mode_of
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.timers import Timers
from sandq.broker.event_loop import Signal
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.scrubber import Scrubber
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import MetadataBarrier
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.raft_frames import send_messages
from sandq.broker.peers.routes import Routes
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.applier import Published
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import Hooks, NodeLog
from sandq.broker.replication.runner import CLOSE_S, Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.model.errors import StorageFailed
from sandq.model.logger import get_logger
from sandq.node.context import Context
from sandq.node.started import STORES_NAME
from sandq.node.storage import Storage
from sandq.server.output import Sender

log = get_logger("sandq.node")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Links to the other nodes, the write-ahead log, and the components that check and repair replicas."""

    this_node: ThisNode
    links: PeerLinks
    clocks: ClockKeeper
    node_log: NodeLog
    runner: Runner
    hooks: Hooks
    """Callbacks of the log. `Delivery` sets `on_digest`."""
    sender: Sender
    """Sends published frames to clients, once per round of the event loop."""
    sick_peers: SickPeers
    health: NodeHealth
    scrubber: Scrubber
    routes: Routes
    progress: MetadataProgress
    barrier: MetadataBarrier
    sweeper: StoreSweeper
    snapshots: Snapshots
    shut_replicas: ShutReplicas
    nursery: trio.Nursery
    """Outlives every connection."""

    async def start(self, timers: Timers) -> None:
        """Start the threads of the log and the tasks that watch it.

        Call it when all components that these threads and tasks call exist."""
        await self.nursery.start(self.runner.run)
        for task in (timers.run, self.health.run, self.scrubber.run, self.shut_replicas.run):
            self.nursery.start_soon(task)


@contextlib.asynccontextmanager
async def replicating(context: Context, storage: Storage) -> AsyncIterator[Replication]:
    """Open the log for the block. At the end of the block, write a checkpoint, then seal and close the log.

    Raises StartupError (Corruption), StorageFailed."""
    config, hooks, sender, wakeup, inbox = context.config, Hooks(), Sender(), Signal(), Inbox()
    this_node = ThisNode(
        storage.own,
        config.node.zone,
        config.node.weight,
        lambda: node_log.feature_level,
        is_named=mode_of(config) == "named",
        levels=context.levels,
        version=sandq.__version__,
    )
    links = _links(context, storage, this_node)
    clocks = ClockKeeper(context.clock, links, lambda: node_log.nodes)

    def publish(published: Published) -> None:
        """Hand the results to the groups. Send all frames that follow from them together."""
        with sender.gathering():
            node_log.published(published)

    hooks.wake, hooks.accepts = wakeup.set, links.accepts
    hooks.on_leads, hooks.reason_to_wait = clocks.leads, clocks.reason_to_wait
    node_log = _open_log(context, storage, hooks, publish=partial(inbox.put, publish))
    storage.save_identity()
    runner = Runner(
        node_log,
        wakeup,
        inbox,
        partial(send_messages, links.send),
        checkpoint_bytes=config.storage.checkpoint_bytes,
        checkpoint_interval_s=config.storage.checkpoint_interval_ms / 1000,
        on_batch=context.stats.batch_records.observe,
    )
    clean, grace_s = False, config.shutdown_grace_ms / 1000
    try:
        async with trio.open_nursery() as nursery:
            yield _replication(
                context,
                storage,
                this_node=this_node,
                links=links,
                clocks=clocks,
                node_log=node_log,
                runner=runner,
                hooks=hooks,
                sender=sender,
                nursery=nursery,
            )
            await _checkpoint(runner, node_log, grace_s)
            clean = True
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            storage.is_hanging = not await runner.close(grace_s + CLOSE_S)
        if storage.is_hanging:
            context.started.lock.keep()  # the thread may still write
            _end_abruptly(context.abandon)
        _close_log(node_log, clean and node_log.failed is None)


def _links(context: Context, storage: Storage, this_node: ThisNode) -> PeerLinks:
    config, secrets, tls = context.config, context.secrets, context.tls
    return PeerLinks(
        cluster=config.cluster.name,
        secrets=None if secrets is None else lambda: secrets.current,
        identity=this_node.identity,
        peers={peer.id: peer.peer for peer in config.cluster.peers},
        known=storage.known,
        tls=None if tls is None else tls.peers,
    )


def _open_log(context: Context, storage: Storage, hooks: Hooks, publish: Callable[[Published], None]) -> NodeLog:
    stats = context.stats
    hooks.on_sync, hooks.on_applied, hooks.on_written = stats.fsync.observe, stats.applied, stats.store_write.observe
    return NodeLog(
        storage.files,
        storage.stores,
        node_id=storage.own.node,
        now_ms=context.clock.now_ms,
        publish=publish,
        limits=context.config.limits,
        segment_bytes=context.config.storage.segment_bytes,
        create=storage.is_new,
        levels=context.levels,
        hooks=hooks,
    )


def _replication(
    context: Context,
    storage: Storage,
    *,
    this_node: ThisNode,
    links: PeerLinks,
    clocks: ClockKeeper,
    node_log: NodeLog,
    runner: Runner,
    hooks: Hooks,
    sender: Sender,
    nursery: trio.Nursery,
) -> Replication:
    config, sick_peers = context.config, SickPeers()
    health = NodeHealth(
        node_log=node_log,
        runner=runner,
        links=links,
        sick_peers=sick_peers,
        clocks=clocks,
        free_bytes=partial(trio.to_thread.run_sync, storage.files.free_bytes, abandon_on_cancel=True),
        reserve_bytes=config.storage.reserve_bytes,
        stall_after_s=config.health.stall_after_ms / 1000,
        request_timeout_s=config.health.request_timeout_ms / 1000,
    )
    shut_replicas = ShutReplicas(own=this_node.name, node_log=node_log, runner=runner, links=links)
    hooks.on_shut = shut_replicas.note
    sweeper = StoreSweeper(node_log, runner, nursery)
    return Replication(
        this_node=this_node,
        links=links,
        clocks=clocks,
        node_log=node_log,
        runner=runner,
        hooks=hooks,
        sender=sender,
        sick_peers=sick_peers,
        health=health,
        scrubber=Scrubber(storage.files, context.started.data_dir / STORES_NAME, config.storage.scrub_rate),
        routes=Routes(this_node.name, links),
        progress=MetadataProgress(links, this_node),
        barrier=MetadataBarrier(node_log, links),
        sweeper=sweeper,
        snapshots=Snapshots(
            node_log,
            runner,
            config.storage.snapshot_rate,
            links,
            sweeper,
            shut_replicas.members_to_restore,
        ),
        shut_replicas=shut_replicas,
        nursery=nursery,
    )


async def _checkpoint(runner: Runner, node_log: NodeLog, grace_s: float) -> None:
    """Write a checkpoint, so that the next start need not replay the log."""
    if node_log.failed is None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + grace_s) as scope:
            await runner.checkpoint()
        if scope.cancelled_caught:
            log.warning("no checkpoint within the shutdown grace: the next start replays the log", grace_s=grace_s)


def _end_abruptly(abandon: Callable[[], None] | None) -> None:
    """End without closing files, because a thread hangs in a disk operation.

    The thread continues when the disk responds again, so nothing that it uses may be closed."""
    log.error("the disk hangs: this node ends without closing its files, and the next start replays the log")
    if abandon is not None:
        abandon()
    raise StorageFailed("the disk hangs: a thread of this node does not end")


def _close_log(node_log: NodeLog, clean: bool) -> None:
    """Close the log. `clean`: a checkpoint covers all entries, so a SEAL record is written first."""
    if clean:
        try:
            node_log.wal.seal()
        except StorageFailed as error:
            log.warning(
                "the log could not be sealed: the next start searches for an incomplete entry at the end",
                error=error.message,
            )
    node_log.wal.close()
