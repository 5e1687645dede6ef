"""Operations on nodes, leaders and replicas that an operator requests: drain, remove, transfer, rebuild."""

from __future__ import annotations

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.controller.metadata_changes import LEADERS_WAIT_S, MetadataChanges
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.routes import Routes
from sandq.metadata import commands as m
from sandq.metadata.records import DRAINING, IN, REMOVING, NodeRecord, Partition
from sandq.metadata.state import holds
from sandq.model.caller import Caller
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    NotLeader,
    Overloaded,
    TimedOut,
    Unavailable,
    UnknownPartition,
)
from sandq.model.logger import get_logger
from sandq.protocol.requests_admin import (
    REMOVE,
    UNDRAIN,
    NodeChange,
    Rebuild,
    Transfer,
)

log = get_logger("sandq.broker")

DROP_WAIT_S = 30.0
"""Maximum time in s to wait until a group has dropped the member whose replica is rebuilt."""


class NodeAdministration:
    """Determines, at the request of operators, which nodes hold and lead partitions. All methods raise the errors of
    `MetadataChanges`."""

    def __init__(self, changes: MetadataChanges, catalog: Catalog, routes: Routes, links: PeerLinks) -> None:
        self._changes = changes
        self._catalog = catalog
        self._routes = routes
        self._links = links
        self._rebuilding: set[int] = set()

    async def change_node(self, request: NodeChange, caller: Caller) -> None:
        """Drain a node, cancel the drain, or remove the node from the cluster. Return when the change is recorded.

        Raise NotFound, Conflict, InvalidRequest."""
        self._changes.check_ready()
        if request.action == REMOVE:
            await self._remove(request.node)
        else:
            await self._drain(request.node, undo=request.action == UNDRAIN)

    async def _drain(self, node: str, *, undo: bool) -> None:
        """Record that a node must hold no partitions. If `undo`, record that the node may hold partitions again.

        The partitions are moved later.

        Raise InvalidRequest if too few nodes would remain."""

        async def change() -> None:
            self._node(node)
            if not undo:
                self._check_without(node)
            await self._changes.commit(m.ChangeStanding(node, IN if undo else DRAINING))
            log.info("a node may hold replicas again" if undo else "a node is being drained", drained=node)

        await self._changes.run(change)

    async def _remove(self, node: str) -> None:
        """Record that a node is being removed.

        The node must hold no partitions, or have failed. `ClusterController` later deletes the record of the node, once
        the node holds no replica and has left the metadata group."""

        async def change() -> None:
            record = self._node(node)
            if record.standing != REMOVING:
                self._check_removable(record)
                await self._changes.commit(m.ChangeStanding(node, REMOVING))
                log.info("a node is being removed", removed=node)

        await self._until_led_without(self._node(node))
        await self._changes.run(change)

    async def transfer(self, request: Transfer, caller: Caller) -> None:
        """Make a node the leader of a partition that the node holds. Return when the node leads the partition.

        Raise UnknownTopic, UnknownPartition; InvalidRequest if the node does not hold the partition; TimedOut if the
        node does not lead the partition in time."""
        topic, partition, node = request.topic, request.partition, request.node
        self._changes.check_ready()

        async def change() -> int:
            """Assign the partition with `node` first. Return the partition's group."""
            placed = self._placed(topic, partition, node)
            order = [node, *[other for other in placed.nodes if other != node]]
            if order != list(placed.nodes):
                await self._changes.commit(m.Assign(placed.group, placed.epoch, order))
            return placed.group

        group = await self._changes.run(change)
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._routes.until_led_by(group, node)
        if self._routes.leader(group) != node:
            raise TimedOut(
                f"{node} does not lead partition {partition} of {topic!r} yet: "
                "it will once it can be reached and has caught up"
            )

    async def rebuild(self, request: Rebuild, caller: Caller) -> None:
        """Make a node drop its replica of a partition, and get a new replica from the other nodes.

        Return when the group has dropped the old replica, and the assignment of the new replica is recorded.

        Raise UnknownTopic, UnknownPartition; InvalidRequest if the node does not hold the partition, or holds its only
        replica. Raise Conflict if the partition is being moved or has no leader, or if another replica is unreachable.

        If the group does not drop the old replica in time, raise TimedOut; the old replica stays. If the assignment of
        the new replica cannot be recorded, for example because this node stops leading, also raise TimedOut. The next
        metadata leader then restores the number of replicas."""
        topic, partition, node = request.topic, request.partition, request.node
        self._changes.check_ready()

        async def change() -> None:
            """Remove the replica from the assignment, wait until the group has dropped this replica, and assign a new
            replica on the same node."""
            placed = self._placed(topic, partition, node)
            self._check_others(topic, partition, placed, node)
            self._rebuilding.add(placed.group)
            try:
                others = [other for other in placed.nodes if other != node]
                await self._changes.commit(m.Assign(placed.group, placed.epoch, others))
                left = await self._until_dropped(placed.group)
                if left is None:
                    raise TimedOut(
                        f"partition {partition} of {topic!r} has not dropped {node} within {DROP_WAIT_S:g} s: it keeps "
                        "its replica; check that all nodes are running, and ask again"
                    )
                try:
                    await self._changes.commit(m.Assign(placed.group, left.epoch, placed.nodes))
                except (NotLeader, Overloaded, Unavailable, Conflict) as error:
                    # Do not raise `error` itself. It may be retriable, and a retriable error tells the client that
                    # nothing was done.
                    raise TimedOut(
                        f"{node} was to rebuild its replica of partition {partition} of {topic!r}, which may be "
                        "dropped by now; the metadata leader gives the partition as many replicas as before, this "
                        f"one or a new one: if they still differ, ask again ({error.message})"
                    ) from None
            finally:
                self._rebuilding.discard(placed.group)
            log.info("a replica is being rebuilt", topic=topic, partition=partition, on=node)

        await self._changes.run(change)

    def is_rebuilding(self, group: int) -> bool:
        """Return whether a replica of a group is being rebuilt. Meanwhile the planner must not change the group's
        assignment."""
        return group in self._rebuilding

    async def _until_dropped(self, group: int) -> Partition | None:
        """Wait until the group of a partition has only members that its assignment names. Return the partition.

        Return None after the time limit (`DROP_WAIT_S`), or if the partition no longer exists."""
        with trio.move_on_after(DROP_WAIT_S):
            while (found := self._changes.view.partition(group)) is not None and found.former:
                await self._changes.metadata.changed()
            return found
        return None

    def _check_others(self, topic: str, partition: int, placed: Partition, node: str) -> None:
        """Raise an error if the replica on `node` must not be dropped now.

        It may be dropped if there are other replicas, all of them are reachable, the group has a leader, and no move is
        in progress."""
        if len(placed.nodes) == 1:
            raise InvalidRequest(f"{node} holds the only replica of partition {partition} of {topic!r}", topic=topic)
        if placed.moving or placed.former:
            raise Conflict(
                f"partition {partition} of {topic!r} is being moved: ask again when the move is done", topic=topic
            )
        missing = sorted(set(placed.nodes) - {node} - self._links.reachable())
        if missing or self._routes.leader(placed.group) is None:
            why = f"{', '.join(missing)} cannot be reached" if missing else "it has no leader"
            raise Conflict(
                f"partition {partition} of {topic!r} must not lose a replica now: {why}; nothing was dropped",
                topic=topic,
            )

    def _placed(self, topic: str, partition: int, node: str) -> Partition:
        """Return the record of a partition that a node holds. Raise UnknownTopic, UnknownPartition, InvalidRequest."""
        record = self._catalog.topic(topic).record
        if not 0 <= partition < len(record.partitions):
            raise UnknownPartition(f"topic {topic!r} has no partition {partition}", topic=topic)
        placed = record.partitions[partition]
        if node not in placed.nodes:
            holders = ", ".join(placed.nodes)
            raise InvalidRequest(f"{node} does not hold partition {partition} of {topic!r}; it is on {holders}")
        return placed

    def _node(self, node: str) -> NodeRecord:
        """Return the record of a node. Raise NotFound."""
        record = self._changes.view.nodes.get(node)
        if record is None:
            known = ", ".join(sorted(self._changes.view.nodes))
            raise NotFound(f"no node {node!r:.80} is registered; there are: {known}", node=node)
        return record

    def _check_without(self, node: str) -> None:
        """Raise InvalidRequest if the other nodes are too few to hold all replicas."""
        others = sum(record.standing == IN for record in self._changes.view.nodes.values() if record.node_id != node)
        for topic in self._changes.view.topics.values():
            if topic.replicas > others:
                raise InvalidRequest(
                    f"topic {topic.name!r} has {topic.replicas} replicas, and without {node} {others} nodes would be "
                    "left: add a node first, or reduce its replicas",
                    topic=topic.name,
                )
        if not others:
            raise InvalidRequest(f"{node} is the only node: its partitions cannot move anywhere")

    async def _until_led_without(self, node: NodeRecord) -> None:
        """If a node has failed, wait until its groups have leaders: elections may still be in progress."""
        if node.failed_since_ms is not None:
            placed = [placed for topic in self._changes.view.topics.values() for placed in topic.partitions]
            with trio.move_on_after(LEADERS_WAIT_S):
                await self._routes.until_led([one.group for one in placed if node.node_id in one.nodes])

    def _check_removable(self, node: NodeRecord) -> None:
        """Raise Conflict if a node must not be removed now."""
        view = self._changes.view
        held = holds(view.topics.values(), node.node_id)
        if node.failed_since_ms is None and held:
            raise Conflict(
                f"{node.node_id} is running and holds {held} replicas: drain it first (or stop it: a node counts as "
                "failed some seconds after it is gone)",
                node=node.node_id,
            )
        if all(other.standing != IN for other in view.nodes.values() if other.node_id != node.node_id):
            raise Conflict(f"{node.node_id} is the only node that stays", node=node.node_id)
        for topic in view.topics.values():
            for at, placed in enumerate(topic.partitions):
                # If a group has a leader, a majority of its members works without the failed node.
                if node.node_id in placed.nodes and self._routes.leader(placed.group) is None:
                    raise Conflict(
                        f"partition {at} of topic {topic.name!r} has no leader without {node.node_id}: start that node "
                        "again, or delete the topic",
                        node=node.node_id,
                        topic=topic.name,
                    )
