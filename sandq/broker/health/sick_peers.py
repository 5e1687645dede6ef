"""Which nodes say that they cannot work, their disks having failed or standing still; or that they have no room."""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

SICK_S: Final = 3.0
"""Who has not said so again for so long is taken for well."""
REASON_CHARS: Final = 500
"""Of what a peer says; the rest is cut."""


class Told(NamedTuple):
    """What a node says of itself."""

    reason: str
    works: bool
    """It works, and takes nothing new: its disk is nearly full."""


class SickPeers:
    def __init__(self) -> None:
        self._told: dict[str, tuple[float, Told]] = {}
        """What a node said last, and when, on trio's clock."""

    def told(self, node: str, reason: str, works: bool) -> None:
        """A node says that it is sick, or has no room."""
        self._told[node] = trio.current_time(), Told(reason[:REASON_CHARS], works)

    def forget(self, node: str) -> None:
        """Nothing is heard of a node any more."""
        self._told.pop(node, None)

    def now(self) -> dict[str, Told]:
        """What is said at present, by node."""
        now_s = trio.current_time()
        self._told = {node: told for node, told in self._told.items() if now_s - told[0] < SICK_S}
        return {node: told for node, (_, told) in self._told.items()}
