"""Ask the leaders of a topic's partitions whether each partition is completely restored.

A topic may be opened only after all of its partitions are completely restored.

Nodes exchange `RESTORE_ASKED` and `RESTORE_TOLD`. A complete partition stays complete, so late replies are correct.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.routes import Routes
from sandq.metadata.records import Topic
from sandq.model.errors import Conflict, Unavailable
from sandq.protocol.peer import PeerFrame

ANSWER_S: Final = 5.0
"""Time limit in s for all other nodes to reply."""
NAMED: Final = 8
"""Maximum number of partitions named in an error message."""


class WholeRestores:
    """Asks other leaders for their completely restored partitions, and answers such requests."""

    def __init__(self, own: str, catalog: Catalog, routes: Routes, links: PeerLinks) -> None:
        """`own`: id of this node."""
        self._own = own
        self._catalog = catalog
        self._routes = routes
        self._links = links
        self._numbers = count(secrets.randbits(62))  # random: replies to a previous process match no number
        self._asked: dict[int, tuple[str, Callable[[Sequence[int]], None]]] = {}
        """By number of the request: (node that was asked, callback for the complete groups in its reply)."""

    # -- requesting side ------------------------------------------------------------------------------------------

    async def check(self, topic: Topic, restore_id: str) -> None:
        """Check that all partitions of a topic are completely restored.

        Raise Conflict if a partition is incomplete; Unavailable if the leader of a partition did not answer."""
        by_node: dict[str, list[int]] = defaultdict(list)
        for partition in topic.partitions:
            node = self._routes.leader(partition.group)
            if node is not None:
                by_node[node].append(partition.group)
        answered: set[int] = set()
        whole: set[int] = set(self._complete_here(by_node.get(self._own, ()), restore_id))
        answered.update(by_node.pop(self._own, ()))
        all_replied = trio.Event()
        left = set(by_node)
        numbers = []

        def take(node: str, groups: Sequence[int]) -> None:
            """Record the complete groups that a node reports. The other groups about which the node was asked are
            incomplete."""
            answered.update(by_node[node])
            whole.update(groups)
            left.discard(node)
            if not left:
                all_replied.set()

        try:
            for node, groups in list(by_node.items()):
                number = next(self._numbers)
                numbers.append(number)
                self._asked[number] = node, lambda found, node=node: take(node, found)  # type: ignore[misc]
                if not self._links.send(node, PeerFrame.RESTORE_ASKED, (number, restore_id, tuple(groups))):
                    left.discard(node)
            if left:
                with trio.move_on_after(ANSWER_S):
                    await all_replied.wait()
        finally:
            for number in numbers:
                del self._asked[number]
        self._conclude(topic, whole, answered)

    def _conclude(self, topic: Topic, whole: set[int], answered: set[int]) -> None:
        """Raise Conflict if a partition is incomplete, or Unavailable if no node answered for it.

        `whole`: the complete groups. `answered`: the groups for which a node answered."""
        incomplete = [at for at, one in enumerate(topic.partitions) if one.group in answered - whole]
        silent = [at for at, one in enumerate(topic.partitions) if one.group not in answered]
        if incomplete:
            raise Conflict(
                f"topic {topic.name!r} stays shut: partitions {_named(incomplete)} are not restored yet, of "
                f"{len(topic.partitions)} in total",
                topic=topic.name,
            )
        if silent:
            raise Unavailable(
                f"topic {topic.name!r} stays shut for now: it is unknown whether partitions {_named(silent)} are "
                "restored, as their leaders did not answer; ask again in a moment"
            )

    # -- answering side -------------------------------------------------------------------------------------------

    def _complete_here(self, groups: Sequence[int], restore_id: str) -> list[int]:
        """Return those of `groups` that are completely restored on this node."""
        found = []
        for group in groups:
            leader = self._catalog.by_group.get(group)
            restore = None if leader is None else leader.raft_group.status.restore
            if restore is not None and restore.is_whole and restore.restore_id == restore_id:
                found.append(group)
        return found

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame from another node. Return True if the frame is well-formed and for this component."""
        if kind == PeerFrame.RESTORE_ASKED and _is(body, [int, str, tuple]) and _are_ints(body[2]):
            number, restore_id, groups = body
            self._links.send(node, PeerFrame.RESTORE_TOLD, (number, tuple(self._complete_here(groups, restore_id))))
            return True
        if kind == PeerFrame.RESTORE_TOLD and _is(body, [int, tuple]) and _are_ints(body[1]):
            asked, take = self._asked.get(body[0], (None, None))
            if take is not None and asked == node:  # otherwise the reply came too late
                take(body[1])
            return True
        return False


def _is(body: Any, kinds: list[type]) -> bool:
    """Return whether a frame's body is a tuple of these types."""
    return isinstance(body, tuple) and [type(part) for part in body] == kinds


def _are_ints(parts: Sequence[Any]) -> bool:
    return all(type(part) is int for part in parts)


def _named(partitions: Sequence[int]) -> str:
    """Return a text with the first `NAMED` partitions, and the number of the others if there are more."""
    more = f" and {len(partitions) - NAMED} more" if len(partitions) > NAMED else ""
    return ", ".join(map(str, partitions[:NAMED])) + more
