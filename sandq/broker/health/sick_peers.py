"""Track which nodes report that they cannot work, because of their disks, or that their disk is nearly full."""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

SICK_S: Final = 3.0
"""Time in s without a new report after which a node counts as healthy."""
REASON_CHARS: Final = 500
"""Maximum length of a peer's reason; the rest is cut."""


class SickReport(NamedTuple):
    """A node's report about itself."""

    reason: str
    works: bool
    """True if it works, but accepts no new messages because its disk is nearly full."""


class SickPeers:
    """The latest reports of other nodes."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, SickReport]] = {}
        """The last report of each node, and its time on trio's clock."""

    def heard(self, node: str, reason: str, works: bool) -> None:
        """Record the report of a node that is sick or has no space."""
        self._reports[node] = trio.current_time(), SickReport(reason[:REASON_CHARS], works)

    def forget(self, node: str) -> None:
        """Forget a node whose link has ended."""
        self._reports.pop(node, None)

    def now(self) -> dict[str, SickReport]:
        """Return the reports that are still valid, by node."""
        now_s = trio.current_time()
        self._reports = {node: report for node, report in self._reports.items() if now_s - report[0] < SICK_S}
        return {node: report for node, (_, report) in self._reports.items()}
