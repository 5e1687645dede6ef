"""Which nodes say that they cannot work: their disks have failed, or stand still."""

from __future__ import annotations

from typing import Final

import trio

SICK_S: Final = 3.0
"""Who has not said so again for so long is taken for well."""
REASON_CHARS: Final = 500
"""Of what a peer says; the rest is cut."""
NO_REASON: Final = "it cannot write any more"
"""Of a node of feature level 1, which says no more."""


class SickPeers:
    def __init__(self) -> None:
        self._told: dict[str, tuple[float, str]] = {}
        """When a node said so last, on trio's clock, and why."""

    def told(self, node: str, reason: str | None) -> None:
        """A node says that it is sick."""
        self._told[node] = trio.current_time(), (reason or NO_REASON)[:REASON_CHARS]

    def recovered(self, node: str) -> None:
        """A node says that it is well again, or nothing can be heard of it any more."""
        self._told.pop(node, None)

    def reasons(self) -> dict[str, str]:
        """Why, of each that is sick now."""
        now_s = trio.current_time()
        self._told = {node: told for node, told in self._told.items() if now_s - told[0] < SICK_S}
        return {node: reason for node, (_, reason) in self._told.items()}
