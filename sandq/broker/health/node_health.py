"""Know whether this node gets on with its work, and act by it: the one place that decides.

A disk that fails says so; one that hangs does not, and nothing that waits for it ever ends. So the progress of the
threads is looked at. Once log, state or store has stood still for `health.stall_after`, this node is *stalled*:

- what waits is answered: TIMED_OUT where it was proposed (the outcome is unknown), UNAVAILABLE where nothing was done;
- it answers for no group that others can lead, and those of them that are well are given the leadership;
- it tells all nodes (SICK), again and again; the metadata leader has it marked failed, and replaced in time.

All of it ends by itself with the next progress. Others must be well for a leadership to be given away: where all nodes
hang on one disk, nobody resigns. Maintenance (flush, compaction, snapshots) may take long; its limit is a longer one,
and requests need not wait for it, so they are not ended.

A full log is a stalled one that says so. Before it comes to that, no new messages are taken (`storage.reserve_bytes`),
and nodes that have room lead what they can; but the node works, and is not replaced.

Stores that met a full disk take nothing more, also when there is room again: the node has to be started anew then,
which is said here (`restart`) and done by the program that runs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import structlog
import trio

from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.health.sick_peers import SickPeers, Told
from sandq.broker.health.stalls import LOOK_S, Stalls, Watched
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

TELL_S: Final = 0.5
"""A sick node says so this often."""
AGAIN_S: Final = 15.0
"""Before groups are tried again that nobody took over: while they are tried they take nothing."""
MAINTENANCE_FACTOR: Final = 12
"""Maintenance may stand still so many times as long as the rest: one step of it may write 1 GiB."""
SPACE_S: Final = 1.0
"""How often the free space is looked at."""
ROOM_AGAIN: Final = 1.1
"""So many times the reserve must be free again."""


class NodeHealth:
    """`run` it once. `stall_after_s`: the log or the state stands still when it has made no progress for so long.
    `request_timeout_s`: what was proposed and is not done within this time, or twice as long, is answered TIMED_OUT."""

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
        """`free_bytes`: free bytes of the disk; returns only when the disk answers. No new messages are stored while
        less than `reserve_bytes` are free: commands that free space need the rest."""
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
        """Set when the stores failed for want of room, and there is room again."""
        self._told_s = -TELL_S
        self._handing_over = False

    @property
    def reason(self) -> str | None:
        """Why this node cannot work; None: it can."""
        failed = self._node_log.failed
        return failed.message if failed is not None else self._stalled

    @property
    def stalled(self) -> str | None:
        """What stands still here, and may go on by itself."""
        return self._stalled

    @property
    def ages_s(self) -> dict[str, float]:
        """For how long each kind of work has made no progress."""
        return self._stalls.ages_s

    def sick(self) -> dict[str, str]:
        """Why, of each node that is known not to work; this one included."""
        return {node: told.reason for node, told in self._known().items() if not told.works}

    def unfit(self) -> Collection[str]:
        """The nodes that had rather not lead: they do not work, or take nothing new."""
        return self._known().keys()

    def may_lead(self, node: str) -> bool:
        """Whether leadership may be given to a node."""
        return self._clocks.may_lead(node) and node not in self.unfit()

    def _known(self) -> dict[str, Told]:
        known, own = self._sick_peers.now(), self._own()
        return known if own is None else {**known, self._node_log.node_id: own}

    def _own(self) -> Told | None:
        """What this node says of itself, if it has to say something."""
        if self.reason is not None:
            return Told(self.reason, False)
        return Told(self.no_room, True) if self.no_room is not None else None

    async def run(self) -> None:
        """Look, tell and hand over, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            nursery.start_soon(self._watch_space)
            while True:
                self.look()
                if self._own() is not None and not self._handing_over:
                    self._handing_over = True
                    nursery.start_soon(self._hand_over)
                await trio.sleep(LOOK_S)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(self._request_timeout_s)
            self._node_log.expire(self._request_timeout_s)

    async def _watch_space(self) -> None:
        while True:
            try:
                free_bytes = await self._free_bytes()
            except StorageFailed as error:
                log.warning("the free space of the disk is not known", error=error.message)
            else:
                self.note_space(free_bytes)
            await trio.sleep(SPACE_S)

    def note_space(self, free_bytes: int) -> None:
        """So much of the disk is free: take new messages, or not."""
        backlog = self._node_log.backlog
        if free_bytes < self._reserve_bytes and backlog.disk_full is None:
            backlog.disk_full = (
                f"the disk of this node is nearly full: {free_bytes >> 20} MiB are free, and below "
                f"{self._reserve_bytes >> 20} MiB (storage.reserve_bytes) nothing new is stored"
            )
            log.error("no new messages are taken until there is room", reason=backlog.disk_full)
        elif free_bytes >= self._reserve_bytes * ROOM_AGAIN and backlog.disk_full is not None:
            backlog.disk_full = None
            log.info("there is room again", free_bytes=free_bytes)
        failed = self._node_log.failed
        if failed is not None and is_full(failed) and backlog.disk_full is None:
            self.restart.set()

    @property
    def no_room(self) -> str | None:
        """Why nothing new is stored here, acks and what makes room are."""
        return self._node_log.backlog.disk_full

    def look(self) -> None:
        """Look once, and tell those who wait here and the other nodes what is new."""
        self._stalls.look(trio.current_time())
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
        self._tell()

    def _note(self, reasons: Collection[str]) -> None:
        reason = "; ".join(reasons) or None
        if reason == self._stalled:
            return
        if reason is not None:
            log.error("this node stands still", reason=reason)
        else:
            log.info("this node goes on", was=self._stalled)
        self._stalled = reason

    def _tell(self) -> None:
        """Say to all nodes that this one is sick; that it is well again they see by its silence."""
        own, now_s = self._own(), trio.current_time()
        if own is None or now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        self._links.send_to_all(PeerFrame.SICK, tuple(own))

    async def _hand_over(self) -> None:
        """Let nodes that are well lead what this one leads."""
        try:
            nodes = {node for node in self._links.up if self.may_lead(node)}
            leaving = [host for host in self._hosts() if self._can_take_over(host, nodes)]
            # A log that stands still sends nothing: the others elect a leader by themselves.
            log_works = self._stalls.ages_s["log"] < LOOK_S and self._runner.log_full is None
            if leaving and self._node_log.failed is None and log_works:
                log.warning("nodes that are well are to lead", groups=len(leaving), nodes=sorted(nodes))
                if kept := await hand_over(lambda: leaving, nodes):
                    log.warning("nobody took over; it is tried again", groups=kept, again_in_s=AGAIN_S)
                    await trio.sleep(AGAIN_S)
            await trio.sleep(LOOK_S)
        finally:
            self._handing_over = False

    @staticmethod
    def _can_take_over(host: RaftGroup, nodes: Collection[str]) -> bool:
        """Whether one of the nodes could lead the group at once. What is being handed over already is left alone: who
        began that ends it."""
        group = host.group
        if host.is_leaving or not can_leave(host, nodes):
            return False
        return any(node_of(m) in nodes and m != group.member and group.has_caught_up(m) for m in group.members.voters)

    def _hosts(self) -> Iterable[RaftGroup]:
        return self._node_log.hosts.values()
