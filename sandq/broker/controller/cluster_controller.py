"""Run the cluster on the metadata leader: register nodes, detect failed ones, choose voters, assign replicas.

`Cluster.run` calls `tend` repeatedly while this node leads the metadata. Each call inspects the cluster, and makes the
necessary changes one after the other. All decisions are recorded in the metadata, so a new leader can continue the
work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import trio

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.joining import Joining
from sandq.broker.controller.feature_level import FeatureLevel
from sandq.broker.controller.metadata_members import next_members
from sandq.broker.controller.node_administration import NodeAdministration
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.peers.routes import Routes
from sandq.broker.reads.fan_out import answers_of
from sandq.broker.replication.leadership_transfer import RETRY_S, hand_over
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.metadata.planning import is_lost, next_changes
from sandq.metadata.records import REMOVING, NodeRecord
from sandq.metadata.state import holds
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.members import incarnation_of, node_of, own_member
from sandq.raft import Members

log = get_logger("sandq.cluster")

FAILED_S: Final = 5.0
"""Time in s for which a node must be missing before it is recorded as failed. A node is missing if it is neither linked
nor alive according to gossip, or if it is sick (`NodeHealth.sick`)."""
MARKED_AHEAD_MS: Final = 60_000
"""Maximum time in ms by which a failure mark may be in the future. A mark with a later time was made by a wrong clock,
and is replaced."""
UNCHECKED_S: Final = 10.0
"""Maximum time in s between two checks. If more time has passed, forget since when nodes have been missing: they may
have been back in between."""

_description = attrgetter("addresses", "zone", "weight", "incarnation", "lowest_level", "highest_level")
"""The attributes that a node itself reports. The record of the node and the command `RegisterNode` both have them."""

Report = tuple[int, int, bool]
"""Report of the leader of a group about its committed configuration: (group, epoch, whole).

See `metadata.commands.Settle`."""


class ClusterController:
    """The work of the metadata leader."""

    def __init__(
        self,
        *,
        joining: Joining,
        directory: PeerDirectory,
        routes: Routes,
        nodes: NodeAdministration,
        health: NodeHealth,
        now_ms: Callable[[], int],
        reassign_after_ms: int,
        partitions_per_node: int,
        feature_level: FeatureLevel | None = None,
    ) -> None:
        """`partitions_per_node`: if a node holds this number of partitions, other nodes are preferred for further
        partitions."""
        self.feature_level = FeatureLevel(directory) if feature_level is None else feature_level
        self._joining = joining
        self._directory = directory
        self._routes = routes
        self._nodes = nodes
        self._health = health
        self._now_ms = now_ms
        self._reassign_after_ms = reassign_after_ms
        self._partitions_per_node = partitions_per_node
        self._settled: dict[int, tuple[int, bool]] = {}
        """By group: (epoch, whole) of the latest `Report` of the group's leader. `_settle` removes and records them."""
        self._missing: dict[str, float] = {}
        """By node: time in s since which the node is missing, on trio's clock."""
        self._checked_s = 0.0
        self._not_before_s = 0.0
        """Time in s before which the metadata group is not handed over again. Set after a failed attempt."""
        self._planned: tuple[int, frozenset[str], frozenset[int]] | None = None
        """Inputs of the last plan that needed no changes: (applied index, result of `_lost`, groups for which
        `_may_assign` is True)."""

    def settled(self, reports: Sequence[Report]) -> None:
        """Store reports of group leaders."""
        for group, epoch, whole in reports:
            self._settled[group] = epoch, whole

    async def tend(self, metadata: RaftGroup) -> None:
        """Do one round of the work.

        Admit and register nodes, choose voters, mark failed nodes, raise the feature level, record reports, assign
        replicas, and delete the records of removed nodes.

        Raise SandqError if something cannot be done now."""
        await self._joining.take_in(metadata)
        await self.register(metadata)
        self._joining.welcome(metadata)
        await self._keep_members(metadata)
        await self._mark(metadata)
        await self.feature_level.tend(metadata)
        await self._settle(metadata)
        await self._plan(metadata)
        await self._remove(metadata)

    # -- nodes ----------------------------------------------------------------------------------------------------

    async def register(self, metadata: RaftGroup) -> None:
        """Record each linked member of the metadata group with its current attributes."""
        for peer in self._directory.linked():
            members = metadata.members
            member = own_member(peer.node_id, (*members.voters, *members.learners))
            if member is None:
                continue
            # Read the metadata again for each peer: another leader may have changed the metadata while the previous
            # peer was registered.
            record = metadata.status.nodes.get(peer.node_id)
            if record is not None and record.store_uuid != peer.store_uuid:
                continue  # the node lost its disk, and must be removed before it joins again
            if metadata.status.feature_level not in peer.levels:
                continue  # the link will end soon: see `PeerDirectory.end_unfit`
            incarnation = incarnation_of(member)
            found = m.RegisterNode(
                node_id=peer.node_id,
                store_uuid=peer.store_uuid,
                addresses=peer.addresses,
                zone=peer.zone,
                weight=peer.weight,
                incarnation=incarnation,
                lowest_level=peer.levels.lowest,
                highest_level=peer.levels.highest,
            )
            if record is None or _description(record) != _description(found):
                await metadata.call(found)

    async def _mark(self, metadata: RaftGroup) -> None:
        """Record which nodes have failed, and which are back."""
        now_s = trio.current_time()
        if now_s - self._checked_s > UNCHECKED_S:
            self._missing.clear()
        self._checked_s = now_s
        alive = {(peer.node_id, peer.store_uuid) for peer in self._directory.linked()} | set(self._directory.alive())
        sick = self._health.sick()
        self._missing = {node: since_s for node, since_s in self._missing.items() if node in metadata.status.nodes}
        commands: list[m.Command] = []
        for node in self._view(metadata).nodes.values():
            if (node.node_id, node.store_uuid) in alive and node.node_id not in sick:
                self._missing.pop(node.node_id, None)
                if node.failed_since_ms is not None:
                    log.info("a node is back", back=node.node_id)
                    commands.append(m.MarkNode(node.node_id, None))
                continue
            missing_s = now_s - self._missing.setdefault(node.node_id, now_s)
            now_ms, since_ms = self._now_ms(), node.failed_since_ms
            # Replace a mark that is far in the future. A wrong clock made this mark, and the node's replicas would be
            # replaced too late.
            is_marked = since_ms is not None and since_ms <= now_ms + MARKED_AHEAD_MS
            if not is_marked and missing_s >= FAILED_S:
                log.warning("a node has failed", failed=node.node_id, reassign_after_ms=self._reassign_after_ms)
                commands.append(m.MarkNode(node.node_id, now_ms - round(missing_s * 1000)))
        await _all(metadata, commands)

    async def _remove(self, metadata: RaftGroup) -> None:
        """Delete the record of each node that is being removed, once it holds no replica and has left the metadata
        group."""
        view, members = self._view(metadata), metadata.members
        for node in list(view.nodes.values()):
            is_member = own_member(node.node_id, (*members.voters, *members.learners)) is not None
            if not is_member and self._is_leaving(node.node_id, view):
                await metadata.call(m.RemoveNode(node.node_id, node.store_uuid))
                log.info("a node is removed", removed=node.node_id)

    # -- members of the metadata group ----------------------------------------------------------------------------

    async def _keep_members(self, metadata: RaftGroup) -> None:
        """Make the next step towards the wanted members of the metadata group (`metadata_members.py`)."""
        group, view, members = metadata.group, self._view(metadata), metadata.members
        if group.is_changing:
            return
        step = next_members(
            view.nodes,
            members,
            group.member,
            caught_up={learner for learner in members.learners if group.has_caught_up(learner)},
            up={peer.node_id for peer in self._directory.linked()},
            known=self._joining.linked_as_registered(view),
            lost=self._lost(view.nodes.values()),
            leaving={node for node in map(node_of, members.learners) if self._is_leaving(node, view)},
        )
        if isinstance(step, Members):
            await metadata.change_members(step)
        elif step is not None and trio.current_time() >= self._not_before_s:
            able = {node for node in step if self._health.may_lead(node)}
            # `hand_over` returns the groups that this node still leads: none after a success.
            if await hand_over(lambda: [metadata], able):
                self._not_before_s = trio.current_time() + RETRY_S

    def _is_leaving(self, node: str, view: MetadataView) -> bool:
        """Return whether a node can leave the metadata group.

        It can leave if it is being removed and holds no replica, or if it is neither registered nor linked."""
        record = view.nodes.get(node)
        if record is None:
            return all(node != peer.node_id for peer in self._directory.linked())
        return record.standing == REMOVING and not holds(view.topics.values(), node)

    # -- assignments ----------------------------------------------------------------------------------------------

    async def _settle(self, metadata: RaftGroup) -> None:
        """Record the reports of group leaders."""
        reports, self._settled = self._settled, {}
        await _all(metadata, [m.Settle(group, *report) for group, report in reports.items()])

    async def _plan(self, metadata: RaftGroup) -> None:
        """Plan and record new assignments of partitions. Do nothing if the last plan had the same inputs and needed no
        changes."""
        view = self._view(metadata)
        now_ms = self._now_ms()
        led = frozenset([group for group in view.partition_of_group if self._may_assign(group)])
        case = (view.applied_index, self._lost(view.nodes.values()), led)
        if case == self._planned:
            return
        plan = partial(
            next_changes,
            view.topics,
            view.nodes,
            view.balanced,
            led,
            now_ms,
            self._reassign_after_ms,
            self._partitions_per_node,
        )
        changes = await trio.to_thread.run_sync(plan)
        if changes:
            log.info("partitions are reassigned", partitions=sum(isinstance(c, m.Assign) for c in changes))
            await _all(metadata, changes)
        else:
            self._planned = case

    def _may_assign(self, group: int) -> bool:
        """Return whether the replicas of a group may be moved: its leader is known here, and no replica is being
        rebuilt."""
        return self._routes.leader(group) is not None and not self._nodes.is_rebuilding(group)

    def _lost(self, nodes: Collection[NodeRecord]) -> frozenset[str]:
        """Return the nodes that have failed for so long that their replicas are replaced."""
        now_ms = self._now_ms()
        return frozenset(node.node_id for node in nodes if is_lost(node, now_ms, self._reassign_after_ms))

    @staticmethod
    def _view(metadata: RaftGroup) -> MetadataView:
        view: MetadataView = metadata.status
        return view


async def _all(metadata: RaftGroup, commands: Sequence[m.Command]) -> None:
    """Commit these commands. If a command is refused, only log this: a later round repeats it if it is still needed."""
    for command, result in zip(commands, await answers_of([(metadata, c) for c in commands]), strict=True):
        if isinstance(result, SandqError):
            log.info("a change of metadata was refused", change=type(command).__name__, error=result.message)
