"""Track which node leads which group. Nodes exchange this information over their links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sandq.broker.event_loop import Signal
from sandq.broker.peers.links import PeerLinks
from sandq.model.logger import get_logger
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.routes")

Route = tuple[int, int, bool]
"""A node's report about a group: (group, term, leads). `leads`: the node leads the group and may answer for it."""


class Routes:
    """The leader of each group, as reported by the nodes.

    In Raft, only the replicas of a group know its leader. Even they do not know whether the leader is ready. So every
    node reports to all other nodes which groups it leads. On a new link, a node reports all its groups; later it
    reports changes.
    """

    def __init__(self, own: str, links: PeerLinks) -> None:
        """`own`: node id of this node."""
        self._own = own
        self._links = links
        self._led: dict[int, int] = {}
        """By group that this node leads and may answer for: the term."""
        self._reported: dict[int, tuple[int, str]] = {}
        """By group: (term, node) of the leader that reported itself with the highest term."""
        self._changed = Signal()
        self.version = 0
        """A number that changes whenever the leader of a group may have changed."""

    def leader(self, group: int) -> str | None:
        """Return the node that leads a group and may answer for it, as far as this node knows; None if it knows
        none."""
        if group in self._led:
            return self._own
        route = self._reported.get(group)
        return route[1] if route is not None else None

    @property
    def led_here(self) -> list[int]:
        """The groups that this node leads and may answer for."""
        return list(self._led)

    async def changed(self) -> None:
        """Wait until the leader of any group may have changed."""
        await self._changed.wait()

    async def until_led(self, groups: Iterable[int]) -> None:
        """Wait until all these groups have a leader."""
        for group in groups:
            while self.leader(group) is None:
                await self._changed.wait()

    async def until_led_by(self, group: int, node: str) -> None:
        """Wait until this node knows that `node` leads the group."""
        while self.leader(group) != node:
            await self._changed.wait()

    def led(self, group: int, term: int, ready: bool) -> None:
        """Record that this node starts (`ready`) or stops leading a group. Report the change to the other nodes."""
        if ready:
            self._led[group] = term
        elif self._led.pop(group, None) is None:
            return
        self._links.send_to_all(PeerFrame.ROUTES, [(group, term, ready)])
        self._note_change()

    def up(self, node: str) -> None:
        """Report all groups that this node leads to a newly linked node."""
        if self._led:
            self._links.send(node, PeerFrame.ROUTES, [(group, term, True) for group, term in self._led.items()])

    def down(self, node: str) -> None:
        """Forget the routes of a node whose link has ended."""
        self._reported = {group: route for group, route in self._reported.items() if route[1] != node}
        self.version += 1

    def heard(self, node: str, routes: Sequence[Any]) -> None:
        """Record the routes that another node reported."""
        for route in routes:
            if not isinstance(route, tuple) or [type(part) for part in route] != [int, int, bool]:
                log.error("a peer sent a malformed route; it is dropped", peer=node, route=repr(route)[:80])
                continue
            group, term, leads = route
            known = self._reported.get(group)
            if leads and (known is None or known[0] <= term):
                self._reported[group] = (term, node)
            elif not leads and known is not None and known[1] == node:
                del self._reported[group]
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self._changed.set()
