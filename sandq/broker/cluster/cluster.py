"""Make this node a member of its cluster, and manage the cluster while this node leads its metadata.

The metadata leader gives the cluster its UUID, admits new nodes (`Joining`), and assigns replicas
(`ClusterController`). `bootstrap/bootstrap.py` describes how a cluster begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from sandq.broker.bootstrap.bootstrap import Bootstrap, BootstrapMode
from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.joining import Beginning
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.event_loop import Signal
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.this_node import ThisNode
from sandq.broker.replication.leadership_transfer import hand_over
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.runner import Runner
from sandq.metadata import commands as m
from sandq.model.errors import Conflict, SandqError, TimedOut
from sandq.model.logger import get_logger
from sandq.storage import identity
from sandq.storage.files import Files

log = get_logger("sandq.cluster")

REGISTER_PAUSE_S = 0.5
INIT_S = 5.0
"""Time in s within which a cluster that an operator founds must be recorded on this node's disk."""


class Cluster:
    """This node's membership in its cluster.

    `mode`: how the cluster begins. `on_joined` is called once this node has recorded the UUID of its cluster.
    `changed`: set by every event that may require work in `run`.
    """

    def __init__(
        self,
        *,
        mode: BootstrapMode,
        this_node: ThisNode,
        files: Files,
        links: PeerLinks,
        node_log: NodeLog,
        runner: Runner,
        directory: PeerDirectory,
        bootstrap: Bootstrap,
        controller: ClusterController,
        changed: Signal,
        on_joined: Callable[[], Awaitable[None]],
    ) -> None:
        self._mode = mode
        self._this_node = this_node
        self._files = files
        self._links = links
        self._node_log = node_log
        self._runner = runner
        self._directory = directory
        self._bootstrap = bootstrap
        self._controller = controller
        self._changed = changed
        self._on_joined = on_joined
        self._takes_part = False
        self._belongs = trio.Event()

    async def hand_over(self, clocks: ClockKeeper, health: NodeHealth) -> None:
        """Before this node stops, transfer its leaderships to healthy nodes, preferably to nodes with good clocks."""
        well = set(self._links.up).difference(health.unfit())
        for nodes in (clocks.good() & well, well):
            await hand_over(self._node_log.hosts.values, nodes)

    # -- forming --------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """True if `formed` may take long, because it depends on other nodes."""
        return self._mode != "alone" and self._node_log.pointers.get(METADATA_GROUP) is None

    @property
    def uuid(self) -> str | None:
        """UUID of the cluster, as recorded on this node."""
        return self._this_node.cluster_uuid

    def waiting(self) -> str | None:
        """Return, as text, why this node does not take part in a cluster yet; None if it takes part."""
        return None if self._takes_part else self._bootstrap.why()

    async def init(self) -> str:
        """Found the cluster with this node alone. Return the UUID of the cluster when it is recorded on this node's
        disk.

        Raise Conflict, Unavailable; TimedOut if it is unknown whether the cluster was founded."""
        uuid = self._this_node.cluster_uuid
        if uuid is not None:
            raise Conflict(f"this node belongs to cluster {uuid} already", cluster_uuid=uuid)
        if self._takes_part:
            raise Conflict("this node belongs to a cluster already, which has no UUID yet")
        await self._bootstrap.init()
        with trio.move_on_after(INIT_S):
            await self._belongs.wait()
        uuid = self._this_node.cluster_uuid
        if uuid is None:
            raise TimedOut(
                f"the cluster was not founded within {INIT_S:g} s; it may still be: check with sandctl cluster info"
            )
        return uuid

    async def finalize(self, *, dry_run: bool) -> dict[str, int]:
        """Raise the cluster to the highest feature level that all nodes support.

        Return the levels `before` and `after`.

        Raise NotLeader, Unavailable; Conflict if there is no higher level."""
        return (await self._controller.feature_level.finalize(self._node_log.metadata, dry_run=dry_run))._asdict()

    async def formed(self) -> Beginning:
        """Wait until this node may take part in the metadata group. Return the initial state of its replica of this
        group."""
        if self._node_log.pointers.get(METADATA_GROUP) is not None:
            self._bootstrap.is_over()
            return Beginning(self._bootstrap.founders)  # the caller does not use this value: the replica exists already
        beginning = await self._bootstrap.formed()
        if beginning.cluster_uuid is not None:
            await self._adopt(beginning.cluster_uuid)
        return beginning

    async def _adopt(self, cluster_uuid: str) -> None:
        """Record durably that this node belongs to a cluster. Then renew the links, and call `on_joined`.

        Do nothing if this is recorded already."""
        if self._this_node.cluster_uuid == cluster_uuid:
            return
        join = partial(identity.join_cluster, self._files, self._this_node.own, cluster_uuid)
        self._this_node.own = await self._runner.on_maintenance(join)
        if self._mode != "named":
            self._links.renew()
        self._belongs.set()
        await self._on_joined()

    # -- membership -----------------------------------------------------------------------------------------------

    async def take_part(self, metadata: RaftGroup) -> None:
        """Start to act as a member. If this node already leads the metadata group, form the cluster and register this
        node and the linked members at once."""
        # As soon as the feature level is known, and before data of that level is sent, end the links with unfit nodes.
        metadata.listen(on_status=self._directory.end_unfit)
        self._directory.end_unfit()
        if metadata.ready:
            try:
                await self._form(metadata)
                await self._controller.register(metadata)
            except SandqError as error:
                log.info("this node is registered later", error=error.message)
        self._takes_part = True

    async def run(self, metadata: RaftGroup) -> None:
        """Adopt the cluster's UUID, and keep the remembered stores and the peers up to date, until cancelled.

        While this node leads the metadata, also manage the cluster."""
        while True:
            uuid = metadata.status.cluster_uuid
            try:
                if uuid is not None:
                    await self._adopt(uuid)
                await self._directory.pin_registered()
                await self._directory.correct_pins()
                self._directory.update_peers()
                if metadata.ready:
                    await self._form(metadata)
                    await self._controller.tend(metadata)
            except SandqError as error:
                log.warning("the cluster could not be managed; trying again", error=error.message)
            with trio.move_on_after(REGISTER_PAUSE_S):
                await self._changed.wait()

    async def _form(self, metadata: RaftGroup) -> None:
        """Give the cluster a UUID, if it has none yet."""
        if metadata.status.cluster_uuid is None:
            await metadata.call(m.FormCluster(self._this_node.cluster_uuid or identity.new_uuid()))
