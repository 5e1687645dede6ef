"""Make changes of the metadata, one at a time, on the metadata leader."""

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
"""Maximum time in s to wait until this node has acted on a change, until all partitions of a topic have leaders, or
until a given node leads a partition."""
OTHERS_WAIT_S = 2.0
"""Maximum time in s to wait until the other nodes have acted on a change.

After this time, the request is answered even if some nodes have not acted yet."""


class MetadataChanges:
    """Makes changes of the metadata.

    Only one change runs at a time. Each change runs to its end, even if its client is gone. All methods raise
    NotLeader, StorageFailed, and TimedOut if the outcome is unknown.
    """

    def __init__(self, node_log: NodeLog, progress: MetadataProgress, links: PeerLinks, nursery: trio.Nursery) -> None:
        """`nursery` must outlive every connection."""
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
        """Raise an error unless this node leads the metadata and is ready.

        Raise Unavailable instead of NotLeader if this node can reach neither the leader nor a majority of the
        voters."""
        try:
            self.metadata.check_ready()
        except NotLeader:
            leader, up = self.metadata.leader, self._links.reachable()
            voters = [node_of(voter) for voter in self.metadata.members.voters]
            there = [node for node in voters if node in up]
            if leader not in up and 2 * len(there) <= len(voters):
                raise Unavailable(
                    f"nothing can be changed: of the {len(voters)} nodes that vote on metadata, "
                    f"{len(voters) - len(there)} cannot be reached from here, and a majority is required"
                ) from None
            raise

    async def change(self, command: Callable[[MetadataView], m.Command]) -> Any:
        """Commit the command that `command(view)` returns. Return the result of this command.

        `view` is the metadata after all earlier changes. Raise the errors of `command` and of the commit."""
        self.check_ready()

        async def change() -> Any:
            """Commit the command for the metadata after all earlier changes."""
            return await self.commit(command(self.view))

        return await self.run(change)

    async def commit(self, command: m.Command) -> Any:
        """Commit a command, and return its result. Call this within `run`.

        Before returning, wait until the nodes have acted on the change, up to `LEADERS_WAIT_S` and `OTHERS_WAIT_S`."""
        result = await self.metadata.call(command)
        index = self.view.applied_index
        # The other members learn the commit index with the next message. Send a message now instead of at the next
        # heartbeat.
        self.metadata.send_commit_index()
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._progress.until(index)
        with trio.move_on_after(OTHERS_WAIT_S):
            await self._progress.until_others(index)
        return result

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Run a change from start to end, after all earlier changes, even if the caller is gone.

        Return the result of `change`, or raise its error."""
        answer: list[T | Exception] = []
        finished = trio.Event()

        async def run() -> None:
            """Run the change while holding the lock, and keep its result or error in `answer`."""
            try:
                await self._acquire()
                try:
                    answer.append(await change())
                finally:
                    self._one.release()
            except Exception as error:  # raise an unexpected error in the caller: here it would stop the node
                answer.append(error)
            finished.set()

        self._nursery.start_soon(run)
        await finished.wait()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    async def _acquire(self) -> None:
        """Acquire the lock `_one`. If `check_ready` raises an error meanwhile, stop waiting and raise this error.

        The change that holds the lock may wait until another node leads the metadata. Without the check, the caller
        would wait just as long."""
        lost: list[SandqError] = []
        is_held = False

        async def watch() -> None:
            """End the wait for the lock as soon as `check_ready` raises."""
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
