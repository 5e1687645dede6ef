"""Decide whether this node makes progress with its work, and act if it does not.

A failing disk raises errors. A hanging disk raises no errors, and operations that wait for the disk never end. So this
module observes the progress of the threads. If the log, the state or the store has made no progress for
`health.stall_after`, this node is *stalled*:

- Pending requests are answered. If a request was proposed, its outcome is unknown (TIMED_OUT). Otherwise the answer is
  UNAVAILABLE.
- The node stops answering for groups that other nodes can lead, and transfers its leaderships to healthy nodes.
- The node repeatedly sends SICK to all nodes. The metadata leader marks the node as failed, and later replaces it.

The stall ends with the next progress. Leadership is handed over only to healthy nodes: if all nodes hang on one disk,
all leaders stay. Maintenance (flush, compaction, snapshots) may take long, and no request waits for it. So maintenance
has a longer limit.

If the log cannot be written because the disk is full, the node also counts as stalled. Earlier, when less than
`storage.reserve_bytes` are free, the node already accepts no new messages. Nodes with free space then take over its
leaderships, where possible. At that stage the node still works, and is not replaced.

If a write to the stores fails because the disk is full, the stores accept nothing more, even when there is space again.
Then the node must be restarted: this module sets `restart`, and the program that runs the node restarts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

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
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.protocol.peer import PeerFrame
from sandq.storage.files import is_full

log = get_logger("sandq.health")

REPORT_S: Final = 0.5
"""Interval in s at which a node reports that it cannot work, or that its disk is nearly full."""
RETRY_S: Final = 15.0
"""Pause in s before the next attempt, if no node took over a group. During an attempt, the group accepts no
commands."""
MAINTENANCE_FACTOR: Final = 12
"""Factor by which the stall limit is longer for maintenance, because one step of maintenance may write 1 GiB."""
SPACE_S: Final = 1.0
"""Interval in s at which the free space of the disk is checked."""
SPACE_FACTOR: Final = 1.1
"""New messages are accepted again once the free space is at least this factor times the reserve."""


class NodeHealth:
    """The health of this node. Call `run` once.

    `stall_after_s`: time without progress after which the log, the state or the store counts as stalled.
    `request_timeout_s`: age at which a pending request is answered with an error. The check runs at this interval, so a
    request may get twice as old.
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
        """`free_bytes()`: return the free bytes of the disk, once the disk answers. `reserve_bytes`: bytes that are
        reserved for commands that free space. While less is free, no new messages are stored."""
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
        """Why this node cannot work; None if it works."""
        failed = self._node_log.failed
        return failed.message if failed is not None else self._stalled

    @property
    def stalled(self) -> str | None:
        """Description of the stalled work of this node, which may continue by itself; None if no work is stalled."""
        return self._stalled

    @property
    def ages_s(self) -> dict[str, float]:
        """Time in s for which each kind of work has made no progress."""
        return self._stalls.ages_s

    def sick(self) -> dict[str, str]:
        """Return the nodes that do not work, as far as this node knows, with the reasons. The result may include this
        node."""
        return {node: report.reason for node, report in self._known().items() if not report.works}

    def unfit(self) -> Collection[str]:
        """Return the nodes that should not lead, because they do not work or accept no new messages."""
        return self._known().keys()

    def may_lead(self, node: str) -> bool:
        """Return whether leadership may be given to a node."""
        return self._clocks.may_lead(node) and node not in self.unfit()

    def _known(self) -> dict[str, SickReport]:
        """Return the reports of all nodes that cannot work, or whose disk is nearly full. The result may include this
        node."""
        known, own = self._sick_peers.now(), self._own()
        return known if own is None else {**known, self._node_log.node_id: own}

    def _own(self) -> SickReport | None:
        """Return what this node reports about itself; None if it is healthy."""
        if self.reason is not None:
            return SickReport(self.reason, False)
        return SickReport(self.disk_full, True) if self.disk_full is not None else None

    async def run(self) -> None:
        """Check the progress, send reports and hand over leaderships, until cancelled."""
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
        """Answer requests that have been pending for too long with an error, until cancelled."""
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
        """Begin or stop accepting new messages, depending on the free bytes of the disk."""
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
        # The stores stay closed after a write failed on the full disk: only a restart opens them again.
        failed = self._node_log.failed
        if failed is not None and is_full(failed) and backlog.disk_full is None:
            self.restart.set()

    @property
    def disk_full(self) -> str | None:
        """Why this node stores no new messages; None if it stores them. Acks and commands that free space are always
        stored."""
        return self._node_log.backlog.disk_full

    def check(self) -> None:
        """Check the progress once. If this node is stalled, fail its pending requests. If it cannot work or its disk is
        nearly full, send a report."""
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
        """Set the reasons why this node is stalled, and log a change. If there are no reasons, the node is not
        stalled."""
        reason = "; ".join(reasons) or None
        if reason == self._stalled:
            return
        if reason is not None:
            log.error("this node is stalled", reason=reason)
        else:
            log.info("this node makes progress again", was=self._stalled)
        self._stalled = reason

    def _send_report(self) -> None:
        """If this node cannot work or its disk is nearly full, report that to all nodes.

        If the reports stop, the other nodes assume that this node has recovered."""
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

        If another component is already handing over the group, return False: that component also ends the hand-over."""
        group = host.group
        if host.is_leaving or not can_leave(host, nodes):
            return False
        return any(node_of(m) in nodes and m != group.member and group.has_caught_up(m) for m in group.members.voters)

    def _hosts(self) -> Iterable[RaftGroup]:
        return self._node_log.hosts.values()
