"""Check how many partitions and replicas topics may have, and choose the nodes that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from sandq.broker.controller.metadata_changes import MetadataChanges
from sandq.broker.peers.links import PeerLinks
from sandq.metadata.placement import Candidate, choose
from sandq.metadata.planning import candidates, slots
from sandq.metadata.records import IN, Topic
from sandq.model.errors import (
    InvalidRequest,
    TooLarge,
    Unavailable,
)
from sandq.model.health import DEFAULT_REPLICAS
from sandq.model.limits import Limits
from sandq.model.members import node_of
from sandq.model.offsets import PARTITION_MAX

NODES_NAMED: Final = 8
"""Maximum number of full nodes named in an error message."""


class TopicPlacement:
    """Checks the limits of the cluster, and chooses nodes for new partitions."""

    def __init__(self, changes: MetadataChanges, limits: Limits, links: PeerLinks) -> None:
        self._changes = changes
        self._limits = limits
        self._links = links

    def check_partitions(self, partitions: int) -> None:
        """Raise InvalidRequest if a topic may not have this number of partitions."""
        if not 1 <= partitions <= self._limits.partitions_per_topic:
            raise InvalidRequest(
                f"a topic of {partitions} partitions; 1 to {self._limits.partitions_per_topic} are allowed "
                "(limits.partitions_per_topic): take fewer, or raise it in the configuration of every node, up to "
                f"{PARTITION_MAX + 1}"
            )

    def check_capacity(self, more: int) -> None:
        """Raise TooLarge if the cluster may not have `more` further partitions."""
        if more:
            self.check_total(
                "partitions", sum(len(topic.partitions) for topic in self._changes.view.topics.values()) + more
            )

    def check_total(self, what: str, count: int) -> None:
        """Raise TooLarge if `count` exceeds the limit of the cluster that `limits.<what>` sets."""
        most = getattr(self._limits, what)
        if count > most:
            raise TooLarge(
                f"the cluster would have {count} {what}; {most} are allowed (limits.{what}): delete some, or raise it "
                "in the configuration of every node",
                limit=what,
                maximum=most,
                size=count,
            )

    def replicas(self, wanted: int | None) -> int:
        """Return the number of replicas of a topic: `wanted`, or the default for this cluster.

        Raise InvalidRequest if there are too few nodes; Unavailable while the cluster is being formed."""
        nodes = self._changes.view.nodes
        # Do not wait for unreachable voters: these nodes may never register.
        voters = {node_of(member) for member in self._changes.metadata.group.members.voters}
        absent = sorted(voters & self._links.reachable() - nodes.keys())
        if absent:
            raise Unavailable(f"the cluster is being formed: {', '.join(absent)} is not registered yet; try again")
        able = [node for node in nodes.values() if node.standing == IN]
        if wanted is None:
            return DEFAULT_REPLICAS if len(able) >= DEFAULT_REPLICAS else 1
        if not 1 <= wanted <= len(able):
            leaving = f", {len(nodes) - len(able)} of which leave" if len(able) < len(nodes) else ""
            raise InvalidRequest(
                f"{wanted} replicas, and {len(nodes)} nodes are registered{leaving}: a node holds one at most"
            )
        return wanted

    async def place(self, partitions: int, replicas: int, topic: Topic | None = None) -> list[list[str]]:
        """Choose `replicas` nodes for each of `partitions` new partitions. Return the nodes for each new partition.

        `topic`: the topic to which the partitions are added; None for a new topic. If `replicas` is more than `topic`
        has, the additional replicas of its existing partitions count in the check of the nodes' capacity. Raise
        InvalidRequest, TooLarge."""
        view = self._changes.view
        # Include nodes that have failed for long. If there are too few other nodes, the failed nodes get partitions,
        # and hold them after their return.
        most = self._limits.partitions_per_node
        there: list[Candidate] = [found for found in candidates(view.nodes, 0, 1, most) if not found.leaves]
        groups = range(view.next_group, view.next_group + partitions)
        if len(there) < replicas:
            raise InvalidRequest(f"{replicas} replicas, and {len(there)} nodes can hold them: add some first")
        raised = {placed.group for placed in topic.partitions} if topic and replicas > topic.replicas else set()
        there_slots = slots(view.topics.values(), ())
        chosen = partial(choose, there_slots, there, groups, replicas, raised)
        choice = await trio.to_thread.run_sync(chosen)
        self._check_nodes(choice.before, choice.after)
        return choice.added

    def _check_nodes(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Raise TooLarge if a node would hold more partitions than allowed, and more than before.

        This happens only if the free capacity of all nodes together is too small.

        `before`, `after`: number of partitions on each node."""
        most = self._limits.partitions_per_node
        over = [count for node, count in after.items() if count > most and count > before[node]]
        if over:
            raise TooLarge(
                f"the nodes cannot hold {sum(after.values()) - sum(before.values())} more replicas of partitions: "
                f"{_fullness(before)}, and a node holds {most} at most (limits.partitions_per_node): add nodes, delete "
                "topics, or raise it in the configuration of every node",
                limit="partitions_per_node",
                maximum=most,
                size=max(over),
            )


def _fullness(held: Mapping[str, int]) -> str:
    """Return a text that says how many partitions the fullest nodes hold."""
    fullest = sorted(held, key=lambda node: (-held[node], node))
    named = ", ".join([f"{node} holds {held[node]}" for node in fullest[:NODES_NAMED]])
    more = len(held) - NODES_NAMED
    return f"{named}, and {more} more nodes hold fewer" if more > 0 else named
