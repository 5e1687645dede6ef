"""Who leads which group, as the nodes tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from sandq.broker.event_loop import Signal
from sandq.broker.peers.links import PeerLinks
from sandq.protocol.peer import PeerFrame

log = structlog.get_logger("sandq.routes")

Route = tuple[int, int, bool]
"""(group, term, whether the sender leads it and may answer for it), as it is sent."""


class Routes:
    """Nodes that hold a replica learn of its leader by Raft, but not when it is ready; the others not at all. So every
    node tells all others what it leads: whenever that changes, and all of it when a connection is made."""

    def __init__(self, own: str, links: PeerLinks) -> None:
        """`own`: this node."""
        self._own = own
        self._links = links
        self._led: dict[int, int] = {}
        self._told: dict[int, tuple[int, str]] = {}
        self._changed = Signal()
        self.version = 0
        """Another one whenever some group has another leader."""

    def leader(self, group: int) -> str | None:
        """The node that is ready to answer for a group, as far as is known here."""
        if group in self._led:
            return self._own
        told = self._told.get(group)
        return told[1] if told is not None else None

    @property
    def led_here(self) -> list[int]:
        """The groups that this node leads, and may answer for."""
        return list(self._led)

    async def changed(self) -> None:
        """Wait until some group may have another leader."""
        await self._changed.wait()

    async def until_led(self, groups: Iterable[int]) -> None:
        """Wait until all of them have a leader."""
        for group in groups:
            while self.leader(group) is None:
                await self._changed.wait()

    async def until_led_by(self, group: int, node: str) -> None:
        """Wait until a node leads a group."""
        while self.leader(group) != node:
            await self._changed.wait()

    def led(self, group: int, term: int, ready: bool) -> None:
        """This node begins, or ceases, to lead a group."""
        if ready:
            self._led[group] = term
        elif self._led.pop(group, None) is None:
            return
        self._links.send_to_all(PeerFrame.ROUTES, [(group, term, ready)])
        self._note_change()

    def up(self, node: str) -> None:
        """A connection was made."""
        if self._led:
            self._links.send(node, PeerFrame.ROUTES, [(group, term, True) for group, term in self._led.items()])

    def down(self, node: str) -> None:
        self._told = {group: told for group, told in self._told.items() if told[1] != node}
        self.version += 1

    def heard(self, node: str, routes: Sequence[Any]) -> None:
        """What another node says of itself."""
        for route in routes:
            if not isinstance(route, tuple) or [type(part) for part in route] != [int, int, bool]:
                log.error("a peer sent what is no route; it is dropped", peer=node, route=repr(route)[:80])
                continue
            group, term, leads = route
            known = self._told.get(group)
            if leads and (known is None or known[0] <= term):
                self._told[group] = (term, node)
            elif not leads and known is not None and known[1] == node:
                del self._told[group]
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self._changed.set()
