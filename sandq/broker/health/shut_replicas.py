"""Track the shut replicas of all nodes, and open the shut replicas of this node again when possible (ADR 46).

Every node reports its shut replicas to all other nodes: on each change, and when a link is made. A leader sends a
snapshot to a member whose replica is shut. If the leader's own replica is shut, the leader hands over to a voter whose
replica works. If a group has committed a SKIP of the failed entry, its shut replicas are loaded from their rows again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Final

import trio

from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.shut import ApplyFailure, Step
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.replication")

HAND_OVER_S: Final = 1.0
"""Interval in s at which this node tries to hand over the groups that it leads with a shut replica."""
REPORTS_MOST: Final = 1000
"""Maximum number of shut replicas that a node reports."""
ERROR_CHARS: Final = 500
"""Maximum length of an error in a report, in characters. Longer errors are cut."""


@dataclass(frozen=True, slots=True)
class ShutReport:
    """A node's report about one shut replica. The order of the fields is also their order in the frame SHUT."""

    group: int
    index: int | None
    """Raft index of the entry that could not be applied; None if the rows could not be read."""
    rows_index: int
    """Raft index of the last entry whose changes the replica has stored."""
    leads: bool
    """True if the reporting node leads the group. Then that node decides whether to skip the entry."""
    step: str
    """The step that failed: a value of `shut.Step`."""
    error: str

    @property
    def reached(self) -> int:
        """Raft index of the last entry that the replica has applied, and perhaps acknowledged.

        The rows of the replica may not have that entry yet. If the replica has applied an entry that its group skipped,
        it can no longer lead: then this is 0."""
        if self.step == Step.SKIPPED:
            return 0
        return self.rows_index if self.index is None else self.index - 1


_TYPES: Final = ((int,), (int, type(None)), (int,), (bool,), (str,), (str,))


class ShutReplicas:
    """The shut replicas of all nodes."""

    def __init__(
        self,
        *,
        own: str,
        node_log: NodeLog,
        runner: Runner,
        links: PeerLinks,
    ) -> None:
        """`own`: node id of this node."""
        self._own = own
        self._node_log = node_log
        self._runner = runner
        self._links = links
        self._changed = trio.Event()
        """Set when `run` may have work. `run` replaces the event in each round."""
        self._sent: tuple[ShutReport, ...] = ()
        """The reports that were last sent to all nodes."""
        self._heard: dict[str, tuple[ShutReport, ...]] = {}
        """The latest reports of each other node."""

    # -- queries --------------------------------------------------------------------------------------------------

    def of_node(self, node: str) -> tuple[ShutReport, ...]:
        """Return the shut replicas of a node."""
        return self._reports() if node == self._own else self._heard.get(node, ())

    def all(self) -> list[tuple[str, ShutReport]]:
        """Return all known shut replicas, with their nodes."""
        found = [(self._own, report) for report in self._reports()]
        return found + [(node, report) for node, reports in sorted(self._heard.items()) for report in reports]

    def nodes_of(self, group: int) -> dict[str, ShutReport]:
        """Return the reports about shut replicas of a group, by node."""
        return {node: report for node, report in self.all() if report.group == group}

    def is_shut(self, group: int, node: str) -> bool:
        """Return whether a node's replica of a group is shut, as far as this node knows."""
        return any([report.group == group for report in self.of_node(node)])

    def members_to_restore(self, host: RaftGroup) -> list[str]:
        """Return the members whose shut replicas a snapshot from this node can replace.

        This node must lead the group, and must have applied the entry at which the member's replica failed."""
        if not self._heard or not host.ready:
            return []
        applied, nodes = host.status.applied_index, self.nodes_of(host.number)
        voters, learners = host.members
        return [
            member
            for member in (*voters, *learners)
            if (report := nodes.get(node_of(member))) is not None and (report.index or report.rows_index) <= applied
        ]

    def _reports(self) -> tuple[ShutReport, ...]:
        """Return reports of the shut replicas of this node."""
        found = [_report(host, host.shut) for host in list(self._node_log.hosts.values()) if host.shut is not None]
        return tuple(found[:REPORTS_MOST])

    # -- reports between nodes ------------------------------------------------------------------------------------

    def note(self, host: RaftGroup) -> None:
        """Wake `run`: a replica of this node is shut, or a SKIP was committed in its group."""
        self._changed.set()

    def up(self, node: str) -> None:
        """Send the reports of this node to a newly linked node."""
        self._links.send(node, PeerFrame.SHUT, _rows(self._reports()))

    def down(self, node: str) -> None:
        """Forget the reports of a node whose link has ended: they may be out of date."""
        self._heard.pop(node, None)

    def on_frame(self, node: str, body: Any) -> bool:
        """Handle the reports of another node about its replicas. Return False if the frame is malformed."""
        if not isinstance(body, tuple) or len(body) > REPORTS_MOST:
            return False
        reports = []
        for row in body:
            if not isinstance(row, tuple) or len(row) != len(_TYPES):
                return False
            if any([type(field) not in types for field, types in zip(row, _TYPES, strict=True)]):
                return False
            group, index, rows_index, leads, step, error = row
            reports.append(ShutReport(group, index, rows_index, leads, step, error[:ERROR_CHARS]))
        self._heard[node] = tuple(reports)
        self._changed.set()
        return True

    # -- actions --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Report the shut replicas of this node, and hand over or open them if possible. Run until cancelled."""
        while True:
            changed = self._changed = trio.Event()
            shut = [host for host in list(self._node_log.hosts.values()) if host.shut is not None]
            for host in shut:
                if host.reopens:
                    await self._reopen(host)
                elif host.group.is_leader:
                    self._hand_over(host)
            reports = self._reports()
            if reports != self._sent:
                self._sent = reports
                self._links.send_to_all(PeerFrame.SHUT, _rows(reports))
            with trio.move_on_after(HAND_OVER_S if shut else math.inf):
                await changed.wait()

    def _hand_over(self, host: RaftGroup) -> None:
        """Hand over leadership to a better voter, if there is one. This node leads the group with a shut replica.

        A voter whose replica works is the best. If all replicas are shut, the replica with the most applied entries
        must lead: it may have acknowledged these entries. Then this leader can skip the next entry, and send snapshots
        to the other replicas."""
        shut, up = self.nodes_of(host.number), self._links.up
        group = host.group
        fit = [v for v in group.members.voters if v != group.member and node_of(v) in up and node_of(v) not in shut]
        if not fit and host.shut is not None:
            # No voter with a working replica is linked: compare how far the shut replicas have applied the log.
            reached = {v: shut[node_of(v)].reached for v in group.members.voters if node_of(v) in up}
            own = _report(host, host.shut).reached
            most = max(reached.values(), default=0)
            fit = [voter for voter, index in reached.items() if own < index == most and voter != group.member]
        if fit and group.transfer(max(fit, key=group.match_index)):
            self._node_log.group_commit.mark(group)

    async def _reopen(self, host: RaftGroup) -> None:
        """Load a shut replica from its rows again.

        Either its group has decided to skip the failed entry, or the replica must find out which of several entries
        fails."""
        node_log, runner, failure = self._node_log, self._runner, host.shut
        try:
            await runner.between_batches(partial(node_log.suspend_shut, host))
        except SandqError as error:
            log.info("a shut replica is not opened again", group=host.number, reason=error.message)
            return
        state = host.replica, host.status
        try:
            state = await runner.ask(partial(node_log.load, host.number, host.replica.store))
            if failure is not None and failure.index is not None and not failure.is_exact:
                state[0].careful_until = failure.index
        except SandqError as error:
            log.error("a shut replica cannot be opened again", group=host.number, error=error.message)
        await runner.between_batches(partial(node_log.reopen, host, *state))
        log.warning("a shut replica is loaded again from its rows", group=host.number)


def _rows(reports: Iterable[ShutReport]) -> tuple[tuple[Any, ...], ...]:
    """Return the reports as rows of the frame SHUT."""
    return tuple([astuple(report) for report in reports])


def _report(host: RaftGroup, failure: ApplyFailure) -> ShutReport:
    """Return the report of a shut replica of this node."""
    step = failure.step.value
    return ShutReport(
        host.number, failure.index, failure.rows_index, host.group.is_leader, step, failure.error[:ERROR_CHARS]
    )
