"""Raise the feature level of the cluster to a level that every node supports, automatically or on request."""

from __future__ import annotations

from typing import NamedTuple

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.model.errors import Conflict
from sandq.model.features import FIRST_LEVEL
from sandq.model.logger import get_logger
from sandq.model.members import node_of

log = get_logger("sandq.cluster")


class Finalized(NamedTuple):
    """The result of `finalize`: the feature level before, and the raised level.

    After a dry run, `after` is the level to which the cluster could be raised."""

    before: int
    after: int


class FeatureLevel:
    """The feature level of the cluster, on the metadata leader."""

    def __init__(self, directory: PeerDirectory, *, rises_by_itself: bool = True) -> None:
        """`rises_by_itself`: raise the level as soon as all nodes support a higher level.

        If False, the level rises by itself only in a cluster without topics: such a cluster has no data that an older
        version would read."""
        self._directory = directory
        self._rises_by_itself = rises_by_itself

    async def tend(self, metadata: RaftGroup) -> None:
        """If the level rises by itself, raise it to the highest level that every node supports."""
        view: MetadataView = metadata.status
        if self._rises_by_itself or not view.topics:
            await self._raise_to(metadata, self._reachable(metadata))

    async def finalize(self, metadata: RaftGroup, *, dry_run: bool) -> Finalized:
        """Raise the level to the highest level that every node supports. A raise cannot be undone.

        `dry_run`: only return the levels, and change nothing. Raise Conflict if the cluster has this level already; the
        error names the nodes that support no higher level."""
        metadata.check_ready()
        view: MetadataView = metadata.status
        before, after = view.feature_level, self._reachable(metadata)
        if after <= before:
            raise Conflict(f"the cluster is at feature level {before}, and cannot be raised: {self._why_not(metadata)}")
        if not dry_run:
            await self._raise_to(metadata, after)
        return Finalized(before, after)

    async def _raise_to(self, metadata: RaftGroup, level: int) -> None:
        """Raise the level to `level`, if the current level is lower."""
        view: MetadataView = metadata.status
        if level > view.feature_level:
            # Do not await anything between reading the nodes' levels and this call: the levels could change.
            await metadata.call(m.RaiseFeatureLevel(level))
            log.info("the cluster was raised to a higher feature level", feature_level=level)

    def _reachable(self, metadata: RaftGroup) -> int:
        """Return the highest level that every node supports.

        Two kinds of levels are used: the registered levels of a node, and the levels that the node reports on its link.
        After a downgrade of the node, the reported levels are lower. If a member of the metadata group is not
        registered yet, return the current level, because that member may support no higher level."""
        view: MetadataView = metadata.status
        if self._unregistered(metadata):
            return view.feature_level
        known = [node.levels for node in view.nodes.values()]
        known += [peer.levels for peer in self._directory.linked() if peer.node_id in view.nodes]
        level = min([levels.highest for levels in known], default=FIRST_LEVEL)
        return level if all(level in levels for levels in known) else view.feature_level

    def _unregistered(self, metadata: RaftGroup) -> list[str]:
        """Return the member nodes of the metadata group that are not registered yet."""
        view: MetadataView = metadata.status
        members = metadata.members
        return [node_of(member) for member in (*members.voters, *members.learners) if node_of(member) not in view.nodes]

    def _why_not(self, metadata: RaftGroup) -> str:
        """Return a text that says why no higher level can be reached."""
        view: MetadataView = metadata.status
        missing = self._unregistered(metadata)
        if missing:
            return f"{', '.join(sorted(missing))} has not reported yet which levels it supports: ask again in a moment"
        known = {node.node_id: node.levels for node in view.nodes.values()}
        known |= {peer.node_id: peer.levels for peer in self._directory.linked() if peer.node_id in known}
        nodes = ", ".join(f"{node} supports {levels}" for node, levels in sorted(known.items()))
        return f"{nodes}. Upgrade the nodes that support no higher one, or remove them"
