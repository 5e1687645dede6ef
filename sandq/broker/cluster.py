"""This node among the others: who its peers are, which cluster it belongs to, and who is registered.

Each node remembers the store UUIDs of the others (`KnownPeers`), so that one that lost its disk is nobody's voter under
its old name. Who leads the metadata group gives the cluster its UUID, takes in who asks (`Joining`) and sees to who
holds what (`ClusterController`). `bootstrap/bootstrap.py` says how a cluster begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog
import trio

from sandq.broker.bootstrap.bootstrap import Bootstrap, Way
from sandq.broker.bootstrap.joining import Beginning, Joining
from sandq.broker.broker import Broker
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.controller.cluster_controller import ClusterController
from sandq.broker.controller.leadership_transfer import hand_over
from sandq.broker.controller.metadata_barrier import ANSWER_S
from sandq.broker.controller.rebalancer import Rebalancer
from sandq.broker.peers.dispatch import PeerDispatch
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import METADATA_GROUP, NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.broker.snapshots.snapshots import Snapshots
from sandq.gossip import tags
from sandq.metadata import commands as m
from sandq.metadata.records import NodeRecord
from sandq.model.config_schema import Address
from sandq.model.errors import Conflict, SandqError, TimedOut
from sandq.model.membership import Membership, State
from sandq.storage import identity
from sandq.storage.files import Files
from sandq.storage.identity import Identity
from sandq.storage.known_peers import KnownPeers

log = structlog.get_logger("sandq.cluster")

REGISTER_PAUSE_S = 0.5
INIT_S = 5.0
"""For a cluster that was founded by hand to be on this node's disk."""
_LIVE = (State.ALIVE, State.SUSPECT)


class Cluster:
    def __init__(
        self,
        *,
        name: str,
        secret: bytes | None,
        own: Identity,
        addresses: Mapping[str, str],
        zone: str,
        weight: int,
        way: Way,
        reassign_after_ms: int,
        peers: Mapping[str, Address],
        files: Files,
        node_log: NodeLog,
        runner: Runner,
        broker: Broker,
        snapshots: Snapshots,
    ) -> None:
        """`addresses`: where this node serves what. `zone`, `weight`: as in the configuration. `way`: how the cluster
        begins. `peers`: node id -> address of its peer port, of those that are named."""
        self._name = name
        self._own = own
        self._addresses = dict(addresses)
        self._zone, self._weight = zone, weight
        self._way = way
        self._known = KnownPeers.open(files)
        self._membership: Membership | None = None
        self._files = files
        self._node_log = node_log
        self._runner = runner
        self._broker = broker
        self.on_joined: Callable[[], Awaitable[None]] = _nothing
        """Called when this node belongs to a cluster that it did not belong to."""
        self.snapshots = snapshots
        self.clock_keeper = ClockKeeper(broker.clock, lambda *frame: self.links.send(*frame), node_log.hosts.values)
        routes = broker.routes
        self.controller = ClusterController(
            self._linked,
            self._alive,
            lambda group: routes.leader(group) is not None,
            broker.clock.now_ms,
            reassign_after_ms,
        )
        self._dispatch = PeerDispatch(
            node_log, broker, self.clock_keeper, self.controller, self._is_ours, self._from_outside
        )
        self.links = self._dispatch.links = PeerLinks(
            cluster=name,
            secret=secret,
            identity=self.identity,
            peers=peers,
            known=self._known,
            on_up=self._dispatch.up,
            on_down=self._dispatch.down,
            on_frame=self._dispatch.on_frame,
            on_stream=snapshots.receive,
            takes_more=self._dispatch.takes_more,
        )
        self._joining = self.controller.joining = Joining(own.node, self.links)
        self._bootstrap = Bootstrap(
            way,
            own.node,
            peers,
            lambda: self._own.cluster_uuid,
            self._joining,
            self.links.send,
            lambda: self.links.up,
            lambda: self._dispatch.followed,
            self._seen,
        )
        self.rebalancer = Rebalancer(node_log, broker.catalog, lambda: self.up, self._dispatch.tell_settled)
        self.rebalancer.may_lead = self.controller.may_lead = self.clock_keeper.may_lead
        node_log.on_leads = self.clock_keeper.leads
        node_log.group_commit.room = self.links.room
        snapshots.open_stream = self.links.open_stream
        snapshots.on_garbage = broker.reconciler.sweep_soon
        runner.send = self._dispatch.send_raft
        broker.tell = self._dispatch.tell_routes
        broker.up = lambda: self.up
        broker.until_others_followed = self._dispatch.until_others_followed
        broker.reconciler.on_followed = self._dispatch.tell_followed
        self.takes_part = False
        """Set by whoever has started what makes this node a member."""
        self._belongs = trio.Event()

    @property
    def up(self) -> Collection[str]:
        """The nodes that can be reached, this one included."""
        return {self._own.node, *self.links.up}

    def identity(self) -> PeerIdentity:
        """Who this node is now: its cluster's UUID may come later."""
        own = self._own
        return PeerIdentity(own.node, own.store_uuid, own.cluster_uuid, self._addresses, self._zone, self._weight)

    def _is_ours(self, peer: Peer) -> bool:
        """Whether it is of this node's cluster, and knows that this node is. Those that are named form theirs
        together."""
        uuid = self._own.cluster_uuid
        return self._way == "named" or (uuid is not None and peer.identity.cluster_uuid == uuid)

    def _from_outside(self, node: str, kind: int, body: Any) -> bool:
        return self._joining.on_frame(node, kind, body) or self._bootstrap.on_frame(node, kind, body)

    async def hand_over(self) -> None:
        """Before this node stops: let others lead what it leads, as far as there are others, for a moment."""
        for nodes in (self.clock_keeper.good(), set(self.links.up)):
            await hand_over(lambda: self._node_log.hosts.values(), nodes)

    # -- who the peers are ----------------------------------------------------------------------------------------

    async def follow(self, membership: Membership) -> None:
        """Be linked with all nodes of the cluster, as they come and go."""
        self._membership = membership
        async for _ in membership.changes():
            self._look_for_peers()
            self._dispatch.wake()

    def _seen(self) -> list[Mapping[str, str]]:
        """Tags of other live members that are nodes of a cluster of this name."""
        members = self._membership.members().values() if self._membership is not None else ()
        ours = [m.tags for m in members if m.state in _LIVE and m.tags.get(tags.CLUSTER) == self._name]
        return [found for found in ours if found.get(tags.NODE, self._own.node) != self._own.node]

    def _look_for_peers(self) -> None:
        """Those that are registered, and those that gossip knows, which knows best where they are now."""
        if self._way == "named":
            return
        metadata = self._node_log.hosts.get(METADATA_GROUP)
        registered = metadata.status.nodes if metadata is not None else {}
        found = {name: record.addresses.get("peer") for name, record in registered.items()}
        for seen in self._seen():
            found[seen[tags.NODE]] = seen.get("peer") or found.get(seen[tags.NODE])
        found.pop(self._own.node, None)
        peers = {}
        for node, text in found.items():
            try:
                peers[node] = Address.parse(text)
            except ValueError:
                continue  # it does not say where it is
        self.links.set_peers(peers)

    # -- forming --------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether `formed` may take long, for it depends on others."""
        return self._way != "alone" and self._node_log.pointers.get(METADATA_GROUP) is None

    @property
    def is_founder(self) -> bool:
        """Whether this node is to found the cluster, unless it finds one, and has not yet."""
        return self._way == "meets" and self._own.cluster_uuid is None

    def waiting(self) -> str | None:
        """Why this node does not take part in a cluster yet, for a person; None once it does."""
        return None if self.takes_part else self._bootstrap.why()

    async def init(self) -> str:
        """Found the cluster with this node alone, now. Its UUID, once that is durable. Raises Conflict, Unavailable;
        TimedOut when it is not known whether it was founded."""
        uuid = self._own.cluster_uuid
        if uuid is not None:
            raise Conflict(f"this node belongs to cluster {uuid} already", cluster_uuid=uuid)
        if self.takes_part:
            raise Conflict("this node belongs to a cluster already, which has no UUID yet")
        await self._bootstrap.init()
        with trio.move_on_after(INIT_S):
            await self._belongs.wait()
        if self._own.cluster_uuid is None:
            raise TimedOut(f"the cluster was not founded within {INIT_S:g} s; it may be yet: sandctl cluster info")
        return self._own.cluster_uuid

    async def formed(self) -> Beginning:
        """Wait until this node may take part in the metadata group; what its replica begins with."""
        if self._node_log.pointers.get(METADATA_GROUP) is not None:
            self._bootstrap.is_over()
            return Beginning(self._bootstrap.founders)  # not asked for: the replica is there
        beginning = await self._bootstrap.formed()
        if beginning.cluster_uuid is not None:
            await self._adopt(beginning.cluster_uuid)
        return beginning

    async def _adopt(self, cluster_uuid: str) -> None:
        """Belong to a cluster from now on, durably."""
        if self._own.cluster_uuid == cluster_uuid:
            return
        join = partial(identity.join_cluster, self._files, self._own, cluster_uuid)
        self._own = await self._runner.on_maintenance(join)
        if self._way != "named":
            self.links.renew()
        self._belongs.set()
        await self.on_joined()

    # -- registering ----------------------------------------------------------------------------------------------

    async def run(self, metadata: RaftGroup) -> None:
        """Keep metadata right about the nodes, when this node leads it; and take the cluster's UUID from it."""
        while True:
            view = self._broker.metadata
            if self._node_log.failed is not None:
                self._dispatch.tell_sick()
            try:
                if view.cluster_uuid is not None:
                    await self._adopt(view.cluster_uuid)
                await self._pin_registered()
                await self._correct_pins()
                self._look_for_peers()
                if metadata.ready:
                    await self._form(metadata)
                    await self.controller.tend(metadata)
            except SandqError as error:
                log.warning("the cluster could not be seen to; it is tried again", error=error.message)
            with trio.move_on_after(REGISTER_PAUSE_S):
                await self._dispatch.changed.wait()

    async def _pin_registered(self) -> None:
        """Who is registered is known by its store from now on, whether or not this node ever met it; who was removed is
        let in no more, and hears why."""
        view = self._broker.metadata
        for gone in view.removed.values():
            for store in gone.stores:
                if not self._known.is_removed(store):
                    await self._runner.on_maintenance(partial(self._known.remove, gone.node_id, store))
                    self.links.end(gone.node_id, "the node was removed from the cluster")
        for node in view.nodes.values():
            is_new = self._known.get(node.node_id) is None and not self._known.is_removed(node.store_uuid)
            if node.node_id != self._own.node and is_new:
                await self._runner.on_maintenance(partial(self._known.pin, node.node_id, node.store_uuid))

    async def _correct_pins(self) -> None:
        """A node that lost its disk may have been met before the one that is registered under its name: the registered
        one counts. Only by what is known for certain: an older registry would shut out those that were added anew.
        Raises Unavailable."""

        def wrong() -> list[NodeRecord]:
            nodes = self._broker.metadata.nodes.values()
            return [node for node in nodes if self._known.get(node.node_id) not in (None, node.store_uuid)]

        if wrong():
            with trio.move_on_after(ANSWER_S):
                await self._broker.reconciler.until_followed(await self._broker.catalog.barrier.index())
                for node in wrong():
                    log.warning(
                        "the data directory of a node that is known here is not the registered one", peer=node.node_id
                    )
                    await self._runner.on_maintenance(partial(self._known.correct, node.node_id, node.store_uuid))
                    self.links.end(node.node_id, "its data directory is not the registered one")

    async def register(self, metadata: RaftGroup) -> None:
        """At once, when this node leads the metadata alone."""
        await self._form(metadata)
        await self.controller.register(metadata)

    async def _form(self, metadata: RaftGroup) -> None:
        """Give the cluster its UUID."""
        if metadata.status.cluster_uuid is None:
            await metadata.call(m.FormCluster(self._own.cluster_uuid or identity.new_uuid()))

    def _linked(self) -> list[PeerIdentity]:
        return [self.identity(), *[peer.identity for peer in self.links.up.values()]]

    def _alive(self) -> list[tuple[str, str]]:
        return [(found[tags.NODE], found.get(tags.STORE_UUID, "")) for found in self._seen()]


async def _nothing() -> None:
    pass
