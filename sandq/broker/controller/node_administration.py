"""Nodes drained and removed, leaders and replicas of single partitions moved: by an operator."""

from __future__ import annotations

import structlog
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
from sandq.protocol.requests_admin import (
    REMOVE,
    UNDRAIN,
    NodeChange,
    Rebuild,
    Transfer,
)

log = structlog.get_logger("sandq.broker")

DROP_WAIT_S = 30.0
"""Time in which a group must drop a member whose replica is rebuilt, in seconds."""


class NodeAdministration:
    """Changes of which node holds and leads what. All raise as `MetadataChanges`."""

    def __init__(self, changes: MetadataChanges, catalog: Catalog, routes: Routes, links: PeerLinks) -> None:
        self._changes = changes
        self._catalog = catalog
        self._routes = routes
        self._links = links
        self._rebuilding: set[int] = set()

    async def change_node(self, request: NodeChange, caller: Caller) -> None:
        """Drain a node, let it take part again, or let the cluster forget it. Returns when it is written down. Raises
        NotFound, Conflict, InvalidRequest."""
        self._changes.check_ready()
        if request.action == REMOVE:
            await self._remove(request.node)
        else:
            await self._drain(request.node, undo=request.action == UNDRAIN)

    async def _drain(self, node: str, *, undo: bool) -> None:
        """Let a node hold nothing, or (`undo`) again: the moves come after. InvalidRequest when those that remain would
        be too few."""

        async def change() -> None:
            self._node(node)
            if not undo:
                self._check_without(node)
            await self._changes.commit(m.ChangeStanding(node, IN if undo else DRAINING))
            log.info("a node takes part again" if undo else "a node is being drained", drained=node)

        await self._changes.run(change)

    async def _remove(self, node: str) -> None:
        """Let the cluster forget a node that holds nothing, or that has failed, once nothing depends on it."""

        async def change() -> None:
            record = self._node(node)
            if record.standing != REMOVING:
                self._check_removable(record)
                await self._changes.commit(m.ChangeStanding(node, REMOVING))
                log.info("a node is being removed", removed=node)

        await self._until_led_without(self._node(node))
        await self._changes.run(change)

    async def transfer(self, request: Transfer, caller: Caller) -> None:
        """Let a node that holds a partition lead it. Returns when it does. Raises UnknownTopic, UnknownPartition,
        InvalidRequest when it does not hold it; TimedOut when it does not come to lead it."""
        topic, partition, node = request.topic, request.partition, request.node
        self._changes.check_ready()

        async def change() -> int:
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
        """Let a node drop its replica of a partition, and get it anew from the others. Returns when the others go on
        without it and it is written down that it comes anew. Raises UnknownTopic, UnknownPartition; InvalidRequest when
        the node does not hold it, or nobody else; Conflict when the others are not all there; TimedOut when it is not
        dropped in time: then it stays as it is; and when metadata cannot be changed a second time, as when this node
        ceases to lead in between: whoever leads then sees to it that there are as many again."""
        topic, partition, node = request.topic, request.partition, request.node
        self._changes.check_ready()

        async def change() -> None:
            placed = self._placed(topic, partition, node)
            self._check_others(topic, partition, placed, node)
            self._rebuilding.add(placed.group)
            try:
                others = [other for other in placed.nodes if other != node]
                await self._changes.commit(m.Assign(placed.group, placed.epoch, others))
                left = await self._until_dropped(placed.group)
                if left is None:
                    raise TimedOut(
                        f"partition {partition} of {topic!r} has not let {node} go within {DROP_WAIT_S:g} s: it keeps "
                        "its replica; see that all nodes are there, and ask again"
                    )
                try:
                    await self._changes.commit(m.Assign(placed.group, left.epoch, placed.nodes))
                except (NotLeader, Overloaded, Unavailable, Conflict) as error:
                    # To be asked again means that nothing was done.
                    raise TimedOut(
                        f"{node} was to drop its replica of partition {partition} of {topic!r}, and to get it anew; "
                        "whoever leads the metadata gives the partition as many replicas as before, this one or a new "
                        f"one: if they differ still, ask again ({error.message})"
                    ) from None
            finally:
                self._rebuilding.discard(placed.group)
            log.info("a replica is made anew", topic=topic, partition=partition, on=node)

        await self._changes.run(change)

    def is_rebuilding(self, group: int) -> bool:
        """Whether a replica of a group is being dropped to be made anew: nobody else is to assign it meanwhile."""
        return group in self._rebuilding

    async def _until_dropped(self, group: int) -> Partition | None:
        """The partition once its group has nobody any more whom its assignment does not name; None: not in time."""
        with trio.move_on_after(DROP_WAIT_S):
            while (found := self._changes.view.partition(group)) is not None and found.former:
                await self._changes.metadata.changed()
            return found
        return None

    def _check_others(self, topic: str, partition: int, placed: Partition, node: str) -> None:
        """Whether the other replicas of a partition can go on without a node's, and make it anew."""
        if len(placed.nodes) == 1:
            raise InvalidRequest(f"{node} holds the only replica of partition {partition} of {topic!r}", topic=topic)
        if placed.moving or placed.former:
            raise Conflict(f"partition {partition} of {topic!r} is being moved: ask again when it is done", topic=topic)
        missing = sorted(set(placed.nodes) - {node} - self._links.reachable())
        if missing or self._routes.leader(placed.group) is None:
            why = f"{', '.join(missing)} cannot be reached" if missing else "it has no leader"
            raise Conflict(
                f"partition {partition} of {topic!r} must not lose a replica now: {why}; nothing was dropped",
                topic=topic,
            )

    def _placed(self, topic: str, partition: int, node: str) -> Partition:
        """A partition that a node is to hold."""
        record = self._catalog.topic(topic).record
        if not 0 <= partition < len(record.partitions):
            raise UnknownPartition(f"topic {topic!r} has no partition {partition}", topic=topic)
        placed = record.partitions[partition]
        if node not in placed.nodes:
            holders = ", ".join(placed.nodes)
            raise InvalidRequest(f"{node} does not hold partition {partition} of {topic!r}; it is on {holders}")
        return placed

    def _node(self, node: str) -> NodeRecord:
        record = self._changes.view.nodes.get(node)
        if record is None:
            known = ", ".join(sorted(self._changes.view.nodes))
            raise NotFound(f"no node {node!r:.80} is registered; there are: {known}", node=node)
        return record

    def _check_without(self, node: str) -> None:
        """Whether the others are enough to hold everything."""
        others = sum(record.standing == IN for record in self._changes.view.nodes.values() if record.node_id != node)
        for topic in self._changes.view.topics.values():
            if topic.replicas > others:
                raise InvalidRequest(
                    f"topic {topic.name!r} has {topic.replicas} replicas, and without {node} {others} nodes would be "
                    "left: add a node first, or lower its replicas",
                    topic=topic.name,
                )
        if not others:
            raise InvalidRequest(f"{node} is the only node: there is nowhere to go")

    async def _until_led_without(self, node: NodeRecord) -> None:
        """Where a failed node held a replica an election may be under way yet."""
        if node.failed_since_ms is not None:
            placed = [placed for topic in self._changes.view.topics.values() for placed in topic.partitions]
            with trio.move_on_after(LEADERS_WAIT_S):
                await self._routes.until_led([one.group for one in placed if node.node_id in one.nodes])

    def _check_removable(self, node: NodeRecord) -> None:
        view = self._changes.view
        held = holds(view.topics.values(), node.node_id)
        if node.failed_since_ms is None and held:
            raise Conflict(
                f"{node.node_id} is there and holds {held} replicas: drain it first (or end it: a node is taken for "
                "failed some seconds after it is gone)",
                node=node.node_id,
            )
        if all(other.standing != IN for other in view.nodes.values() if other.node_id != node.node_id):
            raise Conflict(f"{node.node_id} is the only node that is to stay", node=node.node_id)
        for topic in view.topics.values():
            for at, placed in enumerate(topic.partitions):
                # Whoever leads it has a majority, and a failed node is no part of it.
                if node.node_id in placed.nodes and self._routes.leader(placed.group) is None:
                    raise Conflict(
                        f"partition {at} of topic {topic.name!r} has no leader without {node.node_id}: give that back, "
                        "or delete the topic",
                        node=node.node_id,
                        topic=topic.name,
                    )
