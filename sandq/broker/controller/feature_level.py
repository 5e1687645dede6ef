"""The feature level of the cluster: it rises once every node knows a higher one, by itself or when it is told to."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.model.errors import Conflict
from sandq.model.features import FIRST_LEVEL
from sandq.model.members import node_of

log = structlog.get_logger("sandq.cluster")


class Finalized(NamedTuple):
    """From which level to which."""

    before: int
    after: int


class FeatureLevel:
    """Of the cluster, as far as the node sees to it that leads the metadata."""

    def __init__(self, directory: PeerDirectory, *, rises_by_itself: bool = True) -> None:
        """A cluster without topics rises by itself in any case: nothing is stored in it that one could want to go back
        with."""
        self._directory = directory
        self._rises_by_itself = rises_by_itself

    async def tend(self, metadata: RaftGroup) -> None:
        """Come to the highest level that every node knows, unless that is to be asked for."""
        view: MetadataView = metadata.status
        if self._rises_by_itself or not view.topics:
            await self._raise_to(metadata, self._reachable(metadata))

    async def finalize(self, metadata: RaftGroup, *, dry_run: bool) -> Finalized:
        """Come to the highest level that every node knows, now; `dry_run`: only say which. There is no way back.

        Raises Conflict when the cluster is there already, and says who knows no higher one.
        """
        metadata.check_ready()
        view: MetadataView = metadata.status
        before, after = view.feature_level, self._reachable(metadata)
        if after <= before:
            raise Conflict(
                f"the cluster is at feature level {before}, and comes to no other: {self._why_not(metadata)}"
            )
        if not dry_run:
            await self._raise_to(metadata, after)
        return Finalized(before, after)

    async def _raise_to(self, metadata: RaftGroup, level: int) -> None:
        view: MetadataView = metadata.status
        if level > view.feature_level:
            await metadata.call(m.RaiseFeatureLevel(level))  # nothing may be awaited since the nodes were looked at
            log.info("the cluster comes to another feature level", feature_level=level)

    def _reachable(self, metadata: RaftGroup) -> int:
        """The highest level that every node knows: as it is registered, and as it says of itself now, which may be less
        when it is back with an older version. A member that is not registered yet may know less, too."""
        view: MetadataView = metadata.status
        if self._unregistered(metadata):
            return view.feature_level
        known = [node.levels for node in view.nodes.values()]
        known += [peer.levels for peer in self._directory.linked() if peer.node_id in view.nodes]
        level = min([levels.highest for levels in known], default=FIRST_LEVEL)
        return level if all(level in levels for levels in known) else view.feature_level

    def _unregistered(self, metadata: RaftGroup) -> list[str]:
        view: MetadataView = metadata.status
        members = metadata.members
        return [node_of(member) for member in (*members.voters, *members.learners) if node_of(member) not in view.nodes]

    def _why_not(self, metadata: RaftGroup) -> str:
        view: MetadataView = metadata.status
        missing = self._unregistered(metadata)
        if missing:
            return f"{', '.join(sorted(missing))} has not said yet which ones it knows: ask again in a moment"
        known = {node.node_id: node.levels for node in view.nodes.values()}
        known |= {peer.node_id: peer.levels for peer in self._directory.linked() if peer.node_id in known}
        told = ", ".join(f"{node} knows {levels}" for node, levels in sorted(known.items()))
        return f"{told}. Upgrade the nodes that know no higher one, or remove them"
