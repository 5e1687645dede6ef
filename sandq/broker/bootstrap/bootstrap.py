"""Make a node a member of the metadata group when it starts with a new data directory.

The mode of the node decides how:

- `alone`: it founds its own cluster at once.
- `named`: it founds a cluster with the nodes in its configuration. All of these nodes must be linked, because an
  unreachable node could belong to a cluster. If one of these nodes belongs to a cluster, this node joins that cluster
  instead.
- `meets`: it waits until it has met another node. If that node belongs to a cluster, this node joins the cluster.
  Otherwise, among the nodes that see each other, the node with the smallest id founds a cluster, and the others join.
- `joins`: it asks to join an existing cluster, and never founds a cluster by itself.

Silence never counts as consent. If a `meets` or `joins` node knows no other node, the node waits. Meanwhile an operator
can tell the node to found a cluster (`init`). founder_election.py ensures that only one of several linked nodes founds
the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Literal, TypeVar

import trio

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.bootstrap.founder_election import FounderElection
from sandq.broker.bootstrap.joining import FIRST_INCARNATION, Beginning, Joining
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.this_node import ThisNode
from sandq.gossip import tags
from sandq.model.config import NodeConfig
from sandq.model.errors import Conflict, SandqError
from sandq.model.logger import get_logger
from sandq.model.members import member_id
from sandq.raft import Members

T = TypeVar("T")
BootstrapMode = Literal["alone", "named", "meets", "joins"]

WAITING_LOG_S = 5.0
"""Interval in s at which a waiting node logs why it waits."""
POLL_S = 0.1
"""Interval in s at which a waiting node checks whether it may found or join a cluster."""
NAMES_SHOWN = 5
"""Maximum number of nodes named in a message."""
INIT = "sandctl cluster init"

log = get_logger("sandq.cluster")


def mode_of(config: NodeConfig) -> BootstrapMode:
    """Return the mode that the configuration selects."""
    cluster = config.cluster
    if cluster.peers:
        return "named"
    if not cluster.bootstrap:
        return "joins"
    return "meets" if cluster.seeds else "alone"


class Bootstrap:
    """The bootstrap of this node."""

    def __init__(
        self,
        *,
        mode: BootstrapMode,
        this_node: ThisNode,
        named: Collection[str],
        joining: Joining,
        links: PeerLinks,
        progress: MetadataProgress,
        directory: PeerDirectory,
    ) -> None:
        """`named`: the other nodes in the configuration."""
        self._mode = mode
        self._this_node = this_node
        self._own_node = this_node.name
        self._named = named
        self._joining = joining
        self._links = links
        self._progress = progress
        self._directory = directory
        self._init_requested = trio.Event()
        self._founder_election = FounderElection(this_node.name, links, lambda: self._member() is not None)
        self.on_frame = self._founder_election.on_frame

    async def formed(self) -> Beginning:
        """Wait until this node may take part in a cluster. Return the initial state of its metadata replica."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_waiting)
            found = await self._found()
            nursery.cancel_scope.cancel()
        self.is_over()
        return found

    def is_over(self) -> None:
        """Record that this node takes part in a cluster. From then on, this node refuses all candidates that want to
        found a cluster."""
        self._founder_election.decided = True

    @property
    def founders(self) -> Members:
        """The first configuration of the metadata group, with which a founding node begins its replica.

        Its voters are this node and, in the mode `named`, the other nodes in the configuration."""
        names = sorted([self._own_node, *self._named])
        return Members(tuple(member_id(name, FIRST_INCARNATION) for name in names))

    async def init(self) -> None:
        """Found the cluster with this node alone, at an operator's request.

        Raise Conflict; Unavailable if a reachable node does not answer."""
        if self._mode == "named":
            raise Conflict(
                f"this node cannot found a cluster alone, as cluster.peers names the other nodes: {self.why()}"
            )
        member = self._member()
        if member is not None:
            raise Conflict(f"there is a cluster already: {member} belongs to it, and this node is joining it")
        other = await self._founder_election.decide(lambda: [found[tags.NODE] for found in self._directory.seen()])
        if other is not None:
            raise Conflict(
                f"there is a cluster already: {other} founds it, or knows of it, and this node is joining it"
            )
        self._init_requested.set()

    def why(self) -> str:
        """Return a text with the reason why this node waits, and with the remedy."""
        if self._founder_election.decided:
            return "this node is about to take part in its cluster: ask again in a moment"
        if self._mode == "named":
            if self._member() is not None:
                return f"this node asks to join the cluster of {self._member()}; if that takes long, see its log"
            missing = sorted(set(self._named) - set(self._links.up))
            return f"the cluster is formed once all its nodes have met; missing: {_listed(missing) or 'none'}"
        member = self._member()
        if member is not None:
            return (
                f"this node asks to join the cluster of {member}; if that takes long, see the logs of both nodes, and "
                "check that each can be reached at its peer address"
            )
        met = _listed(sorted({*self._links.up, *(found[tags.NODE] for found in self._directory.seen())}))
        if self._mode == "meets":
            if not met:
                return f"this node founds the cluster once it has met a second node; start one, or run here: {INIT}"
            return f"this node has met {met}; {self._founder()} founds the cluster"
        if not met:
            return (
                "this node waits to join a cluster, and has met no other node: check that one runs and can be reached "
                f"at cluster.seeds, or found the cluster here: {INIT}"
            )
        return (
            f"this node waits to join a cluster, and {met}, which it has met, belongs to none: found the cluster at "
            f"one of them: {INIT}"
        )

    # -- modes ----------------------------------------------------------------------------------------------------

    async def _found(self) -> Beginning:
        """Wait until this node may found or join a cluster, as its mode requires.

        Return the initial state of its metadata replica."""
        if self._mode == "alone":
            return Beginning(self.founders)
        if self._mode == "named":
            return await self._all_named()
        if self._this_node.cluster_uuid is not None:
            # This node was admitted, and stopped before it took part. It must not found a second cluster with this
            # UUID.
            return await self._joining.until_welcome()
        return await _first(self._meet if self._mode == "meets" else self._joining.until_welcome, self._on_init)

    async def _all_named(self) -> Beginning:
        """Wait until all named nodes are linked, have reported their progress, and belong to no cluster.

        If a linked node belongs to a cluster, join that cluster instead."""
        while True:
            up = self._links.up
            if any(peer.identity.cluster_uuid is not None for peer in up.values()):
                return await self._joining.until_welcome()
            if all(name in up and name in self._progress.others for name in self._named):
                return Beginning(self.founders)
            await trio.sleep(POLL_S)

    async def _meet(self) -> Beginning:
        """Wait until this node may found a cluster with the nodes that it has met, or until a cluster admits it."""
        while True:
            if self._member() is not None:
                return await self._joining.until_welcome()
            if self._directory.seen() and self._founder() == self._own_node:
                # If a node refuses or does not answer, ask again later. By then, that node may be gone or may have
                # founded a cluster.
                with suppress(SandqError):
                    if await self._founder_election.decide(self._rivals) is None:
                        return Beginning(self.founders)
            await trio.sleep(POLL_S)

    async def _on_init(self) -> Beginning:
        """Wait until an operator tells this node to found a cluster.

        Return the initial state of its metadata replica."""
        await self._init_requested.wait()
        # If a cluster admitted this node at the same moment, join that cluster.
        return self._joining.welcomed or Beginning(self.founders)

    # -- observations ---------------------------------------------------------------------------------------------

    def _member(self) -> str | None:
        """Return a reachable node that belongs to a cluster; None if there is none."""
        linked = [node for node, peer in self._links.up.items() if peer.identity.cluster_uuid is not None]
        seen = [found[tags.NODE] for found in self._directory.seen() if tags.CLUSTER_UUID in found]
        return min([*linked, *seen], default=None)

    def _rivals(self) -> list[str]:
        """Return the other nodes that may found the cluster."""
        return [found[tags.NODE] for found in self._directory.seen() if tags.FOUNDER in found]

    def _founder(self) -> str:
        """Return the node that should found the cluster: the smallest id among this node and its rivals."""
        return min([self._own_node, *self._rivals()])

    async def _log_waiting(self) -> None:
        """Log why this node waits, every `WAITING_LOG_S`."""
        while True:
            await trio.sleep(WAITING_LOG_S)
            log.warning("this node waits for its cluster", reason=self.why(), linked=sorted(self._links.up))


async def _first(*calls: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the call that finishes first. Cancel all other calls."""
    found: list[T] = []

    async def run(call: Callable[[], Awaitable[T]]) -> None:
        found.append(await call())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)
    return found[0]


def _listed(names: Iterable[str]) -> str:
    """Return a text with up to `NAMES_SHOWN` names and the number of further names."""
    found = list(names)
    more = len(found) - NAMES_SHOWN
    return ", ".join(found[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
