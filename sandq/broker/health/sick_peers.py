"""Track the reports of other nodes that cannot work, or whose disk is nearly full."""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

SICK_S: Final = 3.0
"""Time in s after a node's last report until the node counts as healthy."""
REASON_CHARS: Final = 500
"""Maximum length of a peer's reason, in characters. Longer reasons are cut."""


class SickReport(NamedTuple):
    """A node's report about itself."""

    reason: str
    works: bool
    """True: the node works, but its disk is nearly full, so it accepts no new messages. False: the node cannot work."""


class SickPeers:
    """The latest reports of other nodes."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, SickReport]] = {}
        """By node: time of its last report on trio's clock in s, and the report."""

    def heard(self, node: str, reason: str, works: bool) -> None:
        """Record the report of a node that cannot work, or whose disk is nearly full."""
        self._reports[node] = trio.current_time(), SickReport(reason[:REASON_CHARS], works)

    def forget(self, node: str) -> None:
        """Forget a node whose link has ended."""
        self._reports.pop(node, None)

    def now(self) -> dict[str, SickReport]:
        """Return the reports that are still valid, by node."""
        now_s = trio.current_time()
        self._reports = {node: report for node, report in self._reports.items() if now_s - report[0] < SICK_S}
        return {node: report for node, (_, report) in self._reports.items()}
