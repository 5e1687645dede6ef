"""Changes of metadata, one at a time, by the node that leads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.model.errors import (
    NotLeader,
    SandqError,
    Unavailable,
)
from sandq.model.members import node_of

T = TypeVar("T")

LEADERS_WAIT_S = 10.0
"""For all partitions of a new topic to be led, or one by the node that is to."""
OTHERS_WAIT_S = 2.0
"""For the other nodes to know of a change before it is answered."""


class MetadataChanges:
    """Every change is made from its start to its end, one at a time, whatever becomes of who asked for it. All raise
    NotLeader, StorageFailed, and TimedOut where the outcome is unknown."""

    def __init__(self, node_log: NodeLog, progress: MetadataProgress, links: PeerLinks, nursery: trio.Nursery) -> None:
        """`nursery` outlives every connection."""
        self._node_log = node_log
        self._progress = progress
        self._links = links
        self._nursery = nursery
        self._one = trio.Lock()

    @property
    def metadata(self) -> RaftGroup:
        return self._node_log.metadata

    @property
    def view(self) -> MetadataView:
        view: MetadataView = self.metadata.status
        return view

    def check_ready(self) -> None:
        """Raise NotLeader, or Unavailable while no node can change the metadata."""
        try:
            self.metadata.check_ready()
        except NotLeader:
            leader, up = self.metadata.leader, self._links.reachable()
            voters = [node_of(voter) for voter in self.metadata.members.voters]
            there = [node for node in voters if node in up]
            if leader not in up and 2 * len(there) <= len(voters):
                raise Unavailable(
                    f"nothing can be changed: of the {len(voters)} nodes that vote on what the cluster is, "
                    f"{len(voters) - len(there)} cannot be reached from here, and a majority must be there"
                ) from None
            raise

    async def change(self, command: Callable[[MetadataView], m.Command]) -> Any:
        """Change metadata as `command` says of what it is by then; what the command gives. Raises what `command`
        raises, and what refuses the command."""
        self.check_ready()

        async def change() -> Any:
            return await self.commit(command(self.view))

        return await self.run(change)

    async def commit(self, command: m.Command) -> Any:
        """Change metadata. Return once this node has done what it says then. Call it within `run`."""
        result = await self.metadata.call(command)
        index = self.view.applied_index
        # The others learn with the next message what is committed: now, not with the next heartbeat.
        self.metadata.hurry()
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._progress.until(index)
        with trio.move_on_after(OTHERS_WAIT_S):
            await self._progress.until_others(index)
        return result

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change from its start to its end, after those that were begun before, even if the caller is gone."""
        answer: list[T | Exception] = []
        finished = trio.Event()

        async def run() -> None:
            try:
                await self._take_turn()
                try:
                    answer.append(await change())
                finally:
                    self._one.release()
            except Exception as error:  # a fault, too, is for who asked, and not for the node
                answer.append(error)
            finished.set()

        self._nursery.start_soon(run)
        await finished.wait()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    async def _take_turn(self) -> None:
        """Hold `_one`. Raise what `check_ready` raises, as soon as it does: the change before this one may wait for its
        outcome until another node leads."""
        lost: list[SandqError] = []
        is_held = False

        async def watch() -> None:
            try:
                while True:
                    self.check_ready()
                    await self.metadata.changed()
            except SandqError as error:
                lost.append(error)
                waiting.cancel_scope.cancel()

        async with trio.open_nursery() as waiting:
            waiting.start_soon(watch)
            await self._one.acquire()
            is_held = True
            waiting.cancel_scope.cancel()
        if lost:
            if is_held:
                self._one.release()
            raise lost[0]
