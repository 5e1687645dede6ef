"""Run one life of a node of a simulated cluster: the real engine, leader and routes, over the contents of its disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.routes import Routes
from sandq.broker.replication.applier import Apply
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import PartitionReplica
from sandq.metadata.state import Partition, Topic
from sandq.model.errors import NotLeader, SandqError, StorageFailed, TimedOut, Unavailable
from sandq.model.features import FIRST_LEVEL
from sandq.model.limits import Limits
from sandq.model.names import TIMER
from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.raft import Members
from tests.support.nodes.fake_links import FakeLinks
from tests.support.nodes.next_level import NEXT
from tests.support.simulation.any_window import AnyWindow
from tests.support.simulation.fake_links import Network
from tests.support.simulation.stepped import Stepped, VirtualClock
from tests.support.storage.faulty_files import FaultyFiles, Plan

if TYPE_CHECKING:
    from tests.support.simulation.cluster_world import ClusterWorld

GROUP = 7
BY_CONNECTION = (c.Append, c.Ack, c.Nack, c.Extend, c.Cancel, c.Move)
RAFT, ROUTES = 1, 2
"""Kinds of frames between nodes."""

Answer = Callable[[Any], None]


class NodeClock(VirtualClock):
    """A node's guarded clock: true time plus the node's own error plus the common error of all nodes."""

    def __init__(self, true: VirtualClock, offset_ms: int, wrong_ms: Callable[[], int]) -> None:
        self._true = true
        self._wrong_ms = wrong_ms
        self._offset_ms = offset_ms

    @property
    def ms(self) -> int:
        return self._true.ms + self._offset_ms + self._wrong_ms()


def topic_of(names: tuple[str, ...], settings: dict[str, Any], kind: str = TIMER) -> Topic:
    """Return a topic with one partition, which is on all nodes."""
    members = tuple(f"{name}#1" for name in names)
    return Topic(
        name="t",
        number=1,
        kind=kind,
        initial_partitions=1,
        replicas=len(members),
        settings=settings,
        created_ms=0,
        partitions=(Partition(GROUP, members, members),),
        first_settings=settings,
    )


class LevelledLog(NodeLog):
    """The Raft groups of a node without a metadata group. The world sets the feature level of the cluster."""

    known_level = FIRST_LEVEL

    @property
    def feature_level(self) -> int:
        return self.known_level

    def check_level(self, needed: int) -> None:
        if needed > self.known_level:
            raise Unavailable("this node has not heard yet what level its cluster has come to")


class RouteLinks(FakeLinks):
    """The links of a node, over which it announces the groups that it leads."""

    def __init__(self, network: Network, own: str) -> None:
        super().__init__(own=own)
        self._network = network

    @property
    def up(self) -> dict[str, Any]:
        return {receiver: None for sender, receiver in self._network.pairs if sender == self.own}

    def send(self, node_id: str, kind: int, body: Any) -> bool:
        self._network.send(self.own, node_id, (ROUTES, body))
        return self._network.joins(self.own, node_id)


class ClusterNode(Stepped):
    def __init__(self, world: ClusterWorld, name: str, plan: Plan) -> None:
        self.clock = NodeClock(world.clock, world.offsets_ms[name], lambda: world.wrong_ms)
        super().__init__(world.rng, self.clock)
        self.name, self.plan = name, plan
        self._network = world.network
        self._applied = world.applied
        self._calls: dict[int, Answer] = {}
        """Callbacks of unanswered client requests, by number."""
        self._numbers = count()
        self._sweep_at = NodeLog.SWEEP_START
        disk = world.disks[name]
        self.node_log = LevelledLog(
            FaultyFiles(disk.memory, plan),
            disk.stores,
            node_id=name,
            now_ms=self.clock.now_ms,
            publish=self.published.append,
            limits=Limits(),
            segment_bytes=world.segment_bytes,
        )
        self.routes = Routes(name, RouteLinks(world.network, name))
        members = Members(world.topic.partitions[0].members)
        own = self.node_log.own(members)
        assert own is not None
        self.node_log.install([(GROUP, own, members)])
        self.host = self.node_log.open_partition(world.topic, 0)
        window = AnyWindow(self.timers, ahead_ms=world.lease_ahead_ms)
        self.node_log.group_commit.before_proposals = lambda: window.before_proposals(self.clock.now_ms())
        self.delivery = PartitionLeader(
            raft_group=self.host,
            partition=0,
            clock=self.clock,  # type: ignore[arg-type]
            timers=self.timers,  # type: ignore[arg-type]
            window=window,
            cluster_level=lambda: self.node_log.feature_level,
            highest_level=NEXT.highest,
        )
        self.host.listen(on_ready=self._on_ready)
        self.host.notify_changed()

    @property
    def replica(self) -> PartitionReplica:
        replica = self.host.replica
        assert isinstance(replica, PartitionReplica)
        return replica

    def _on_ready(self, ready: bool) -> None:
        self.routes.led(GROUP, self.host.group.term, ready)
        self.delivery.end_subscriptions(NotLeader("the partition is led by another node now"))
        if ready:
            self.delivery.lead()

    def learn_level(self, level: int) -> None:
        """Learn the feature level of the cluster, as from metadata (`Reconciler`)."""
        self.node_log.known_level = level
        self.delivery.raise_level()

    # -- clients --------------------------------------------------------------------------------------------------

    def call(self, command: Any, done: Answer, *, messages: int = 0) -> None:
        """Execute a command for a client. `done` is called exactly once, at the latest when the node ends."""
        number = next(self._numbers)
        self._calls[number] = done
        try:
            # Each connection has its own order, so requests of one may overtake those of others.
            line = type(command) if isinstance(command, BY_CONNECTION) else None
            self.host.submit(command, lambda result: self._answer(number, result), messages=messages, line=line)
        except SandqError as error:
            self._answer(number, error)

    def _answer(self, number: int, result: Any) -> None:
        done = self._calls.pop(number, None)
        if done is not None:
            done(result)

    def end(self) -> None:
        """End the life: all open requests fail."""
        self.delivery.end_subscriptions(TimedOut("the connection is gone"))
        for number in list(self._calls):
            self._answer(number, TimedOut("the connection is gone: the outcome is unknown"))

    # -- connections ----------------------------------------------------------------------------------------------

    def connected(self, node: str) -> None:
        self.node_log.group_commit.connected(node)
        self.routes.up(node)

    def disconnected(self, node: str) -> None:
        self.node_log.group_commit.disconnected(node)
        self.routes.down(node)

    def receive(self, node: str, frame: Any) -> None:
        kind, body = frame
        if kind == RAFT:
            self.node_log.group_commit.receive(node, body)
        else:
            self.routes.heard(node, body)

    # -- steps ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.node_log.failed is None:
            self.node_log.group_commit.on_time()
            super().tick()

    def sync(self) -> None:
        if self.node_log.failed is not None:
            return
        try:
            super().sync()
        except StorageFailed:
            return
        self.send()

    def send(self) -> None:
        for node, messages in self.node_log.group_commit.take_outgoing().items():
            self._network.send(self.name, node, (RAFT, messages))

    def run(self, tasks: list[Any]) -> None:
        for task in tasks:
            if isinstance(task, Apply):
                self._applied(self.name, task)
        super().run(tasks)

    def step_checkpoint(self) -> None:
        try:
            if self.node_log.failed is None:
                super().step_checkpoint()
        except StorageFailed as error:
            self.node_log.fail(error)

    def sweep(self) -> None:
        """Run one step of the sweep over the rows of earlier lives. After the last step, start a new sweep."""
        self._sweep_at = self.node_log.sweep(self._sweep_at)[0] or NodeLog.SWEEP_START

    @property
    def is_idle(self) -> bool:
        return self.records is None and not (self.tasks or self.published)

    def rows(self) -> Mapping[bytes, Any]:
        """Return all rows of the replica at its applied index.

        Rows of counts are left out, because they depend on how writes were batched."""
        self.node_log.applier.write()
        found = self.replica._rows.scan(b"", b"\xff" * 40, limit=1 << 30, max_bytes=1 << 40)
        return comparable(found)
