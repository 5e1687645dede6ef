"""Watch whether this node makes progress with its work, and act if it does not. Only this module decides that.

A failing disk raises errors. A hanging disk raises none, and operations that wait for it never end. So the progress of
the threads is observed. If the log, the state or the store has made no progress for `health.stall_after`, this node is
*stalled*:

- Pending requests are answered: TIMED_OUT if they were proposed (the outcome is unknown), UNAVAILABLE otherwise.
- The node stops answering for groups that other nodes can lead, and transfers its leaderships to healthy nodes.
- It repeatedly sends SICK to all nodes. The metadata leader marks it as failed, and later replaces it.

All of this ends with the next progress. Leadership is handed over only to healthy nodes: if all nodes hang on one disk,
none resigns. Maintenance (flush, compaction, snapshots) may take long. So it has a longer limit. No requests wait for
it.

A node whose log cannot be written because the disk is full also counts as stalled. Before the disk is full, no new
messages are accepted (`storage.reserve_bytes`), and nodes with free space take over the leaderships, where
possible. At that stage the node still works, and is not replaced.

Stores that met a full disk accept nothing more, even when there is space again. Then the node must be restarted: this
module sets `restart`, and the program that runs the node does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import structlog
import trio

from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.health.sick_peers import SickPeers, SickReport
from sandq.broker.health.stalls import CHECK_S, Stalls, Watched
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.leadership_transfer import can_leave, hand_over
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.model.errors import StorageFailed
from sandq.model.members import node_of
from sandq.protocol.peer import PeerFrame
from sandq.storage.files import is_full

log = structlog.get_logger("sandq.health")

REPORT_S: Final = 0.5
"""Interval in s at which a sick node reports so."""
RETRY_S: Final = 15.0
"""Pause in s before groups that no node took over are tried again. During an attempt they accept no commands."""
MAINTENANCE_FACTOR: Final = 12
"""Factor by which the stall limit is longer for maintenance: one step of maintenance may write 1 GiB."""
SPACE_S: Final = 1.0
"""Interval in s at which the free space is checked."""
SPACE_FACTOR: Final = 1.1
"""Factor by which the free space must exceed the reserve before messages are accepted again."""


class NodeHealth:
    """The health of this node. Call `run` once.

    `stall_after_s`: time without progress after which the log or the state is stalled. `request_timeout_s`: a proposed
    request that is not done within this time, or up to twice as long, is answered TIMED_OUT.
    """

    def __init__(
        self,
        *,
        node_log: NodeLog,
        runner: Runner,
        links: PeerLinks,
        sick_peers: SickPeers,
        clocks: ClockKeeper,
        free_bytes: Callable[[], Awaitable[int]],
        reserve_bytes: int,
        stall_after_s: float,
        request_timeout_s: float,
    ) -> None:
        """`free_bytes`: returns the free bytes of the disk, once the disk answers. No new messages are stored while
        less than `reserve_bytes` are free, as commands that free space need the rest."""
        self._node_log = node_log
        self._runner = runner
        self._links = links
        self._sick_peers = sick_peers
        self._clocks = clocks
        needed = [
            Watched("log", "the write-ahead log", stall_after_s, lambda: runner.progress_of("log")),
            Watched("state", "the state of the partitions", stall_after_s, lambda: runner.progress_of("state")),
            Watched("rows", "the store of the partitions", stall_after_s, lambda: runner.progress_of("rows")),
        ]
        maintenance_s = stall_after_s * MAINTENANCE_FACTOR
        others = [Watched("maintenance", "maintenance", maintenance_s, lambda: runner.progress_of("maintenance"))]
        self._needed = frozenset(one.label for one in needed)
        self._stalls = Stalls([*needed, *others])
        self._stalled: str | None = None
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._request_timeout_s = request_timeout_s
        self.restart = trio.Event()
        """Set when the stores failed because the disk was full, and there is space again."""
        self._sent_s = -REPORT_S
        self._handing_over = False

    @property
    def reason(self) -> str | None:
        """Why this node cannot work; None if it can."""
        failed = self._node_log.failed
        return failed.message if failed is not None else self._stalled

    @property
    def stalled(self) -> str | None:
        """Description of the work that is stalled here, and may continue by itself; None if no work is stalled."""
        return self._stalled

    @property
    def ages_s(self) -> dict[str, float]:
        """Time in s for which each kind of work has made no progress."""
        return self._stalls.ages_s

    def sick(self) -> dict[str, str]:
        """Return the reason for each node that is known not to work, including this one."""
        return {node: report.reason for node, report in self._known().items() if not report.works}

    def unfit(self) -> Collection[str]:
        """Return the nodes that should not lead: they do not work, or accept no new messages."""
        return self._known().keys()

    def may_lead(self, node: str) -> bool:
        """Return whether leadership may be given to a node."""
        return self._clocks.may_lead(node) and node not in self.unfit()

    def _known(self) -> dict[str, SickReport]:
        """Return the reports of all nodes that are sick or have no space, including this one."""
        known, own = self._sick_peers.now(), self._own()
        return known if own is None else {**known, self._node_log.node_id: own}

    def _own(self) -> SickReport | None:
        """Return what this node reports about itself; None if it is healthy."""
        if self.reason is not None:
            return SickReport(self.reason, False)
        return SickReport(self.disk_full, True) if self.disk_full is not None else None

    async def run(self) -> None:
        """Check, report and hand over until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            nursery.start_soon(self._watch_space)
            while True:
                self.check()
                if self._own() is not None and not self._handing_over:
                    self._handing_over = True
                    nursery.start_soon(self._hand_over)
                await trio.sleep(CHECK_S)

    async def _expire(self) -> None:
        """Answer requests that were proposed too long ago, until cancelled."""
        while True:
            await trio.sleep(self._request_timeout_s)
            self._node_log.expire(self._request_timeout_s)

    async def _watch_space(self) -> None:
        """Measure the free space of the disk every `SPACE_S`, until cancelled."""
        while True:
            try:
                free_bytes = await self._free_bytes()
            except StorageFailed as error:
                log.warning("the free space of the disk is not known", error=error.message)
            else:
                self.note_space(free_bytes)
            await trio.sleep(SPACE_S)

    def note_space(self, free_bytes: int) -> None:
        """Accept new messages or not, depending on the free bytes of the disk."""
        backlog = self._node_log.backlog
        if free_bytes < self._reserve_bytes and backlog.disk_full is None:
            backlog.disk_full = (
                f"the disk of this node is nearly full: {free_bytes >> 20} MiB are free, and below "
                f"{self._reserve_bytes >> 20} MiB (storage.reserve_bytes) nothing new is stored"
            )
            log.error("no new messages are accepted until there is space", reason=backlog.disk_full)
        elif free_bytes >= self._reserve_bytes * SPACE_FACTOR and backlog.disk_full is not None:
            backlog.disk_full = None
            log.info("there is space again", free_bytes=free_bytes)
        failed = self._node_log.failed
        if failed is not None and is_full(failed) and backlog.disk_full is None:
            self.restart.set()

    @property
    def disk_full(self) -> str | None:
        """Why no new messages are stored here; None if they are. Acks and commands that free space are still stored."""
        return self._node_log.backlog.disk_full

    def check(self) -> None:
        """Check once, and notify pending requests and the other nodes of changes."""
        self._stalls.check(trio.current_time())
        stalled = self._stalls.stalled()
        reasons = [
            f"{one.what} of this node has made no progress for {one.limit_s:g} s: its disk may hang" for one in stalled
        ]
        full = self._runner.log_full
        self._note([full] if full is not None else reasons)
        blocked = full is not None or any(one.label in self._needed for one in stalled)
        if self._stalled is not None and blocked:
            self._node_log.stall(self._stalled)
            if any(one.label == "state" for one in stalled):
                self._runner.give_up_queries(self._stalled)
        else:
            self._node_log.resume()
        self._send_report()

    def _note(self, reasons: Collection[str]) -> None:
        """Set the reason why this node is stalled, and log a change."""
        reason = "; ".join(reasons) or None
        if reason == self._stalled:
            return
        if reason is not None:
            log.error("this node is stalled", reason=reason)
        else:
            log.info("this node makes progress again", was=self._stalled)
        self._stalled = reason

    def _send_report(self) -> None:
        """Report to all nodes that this node is sick. If the reports stop, they assume that it has recovered."""
        own, now_s = self._own(), trio.current_time()
        if own is None or now_s - self._sent_s < REPORT_S:
            return
        self._sent_s = now_s
        self._links.send_to_all(PeerFrame.SICK, tuple(own))

    async def _hand_over(self) -> None:
        """Transfer the leadership of groups from this node to healthy nodes."""
        try:
            nodes = {node for node in self._links.up if self.may_lead(node)}
            leaving = [host for host in self._hosts() if self._can_take_over(host, nodes)]
            # If the log is stalled, this node sends no Raft messages, and the other nodes elect leaders by themselves.
            log_works = self._stalls.ages_s["log"] < CHECK_S and self._runner.log_full is None
            if leaving and self._node_log.failed is None and log_works:
                log.warning("healthy nodes should lead instead", groups=len(leaving), nodes=sorted(nodes))
                if kept := await hand_over(lambda: leaving, nodes):
                    log.warning("no node took over; the attempt is repeated", groups=kept, again_in_s=RETRY_S)
                    await trio.sleep(RETRY_S)
            await trio.sleep(CHECK_S)
        finally:
            self._handing_over = False

    @staticmethod
    def _can_take_over(host: RaftGroup, nodes: Collection[str]) -> bool:
        """Return whether one of the nodes could lead the group at once.

        A group that is already being handed over is left alone: the component that began the hand-over ends it."""
        group = host.group
        if host.is_leaving or not can_leave(host, nodes):
            return False
        return any(node_of(m) in nodes and m != group.member and group.has_caught_up(m) for m in group.members.voters)

    def _hosts(self) -> Iterable[RaftGroup]:
        return self._node_log.hosts.values()
