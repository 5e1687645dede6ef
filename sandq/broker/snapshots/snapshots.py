"""Snapshots of this node's replicas: sent to members that the log does not reach any more, and installed from others.

Sending: the rows as they stand once everything applied is written (apply thread), read in chunks on the maintenance
thread, over a connection of their own. Meanwhile the log keeps what comes behind them, up to a budget; when writes
outrun it the state is taken anew, and sent at twice the rate and with twice the budget. Installing: into a new store,
that nothing points to until all of it is durable; then the old replica is stopped, the pointer is set, and the group
goes on from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from sandq.broker.memory_budget import SNAPSHOTS_SHARE
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.stream import PeerStream
from sandq.broker.replication.log_pin import LogPin, pin_bytes
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup, Sending
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.intake import Intake
from sandq.broker.snapshots.transfer import Answer, Outlet, Verdict, send_snapshot
from sandq.model.errors import SandqError, StorageFailed, Unavailable
from sandq.model.members import incarnation_of, node_of
from sandq.storage.files import may_have_happened
from sandq.storage.pointers import StorePointer
from sandq.storage.snapshot import SNAPSHOT_ID_BYTES, Chunk, Exporter, Importer, Meta
from sandq.storage.stores import StoresSnapshot

log = structlog.get_logger("sandq.snapshots")

LOOK_S = 0.2
"""How often it is looked who needs one."""
ATTEMPTS = 5
"""Connections for one snapshot; then a later state is sent."""
RETRY_S = 1.0
RETRY_MOST_S = 60.0
"""Before a snapshot that was outrun is sent again: the pause grows to this."""
RATE_DOUBLINGS = 6
"""So often the rate is doubled for a snapshot that was outrun."""
STALLED_S = 10.0
"""A member that has its snapshot and gets nothing from the log for so long is waited for no more."""


def needing(host: RaftGroup) -> list[str]:
    """Members that this node is to send a snapshot. It leads, and may not be ready yet: when all that are up need one,
    it has no majority before."""
    return [] if host.failed is not None else sorted(host.group.lagging)


def _is_behind(host: RaftGroup, member: str) -> bool:
    """Whether this node leads, and a member has not all of the log yet."""
    voters, learners = host.members
    leads = host.group.is_leader and host.failed is None
    return leads and member in (*voters, *learners) and not host.group.has_caught_up(member)


async def _caught_up(host: RaftGroup, member: str, pin: LogPin) -> None:
    """Wait until a member has got from the log what came after its snapshot, for as long as it comes nearer."""
    got, since_s = host.group.match_index(member), trio.current_time()
    while not pin.is_lost and _is_behind(host, member) and trio.current_time() - since_s < STALLED_S:
        await trio.sleep(LOOK_S)
        if host.group.match_index(member) > got:
            got, since_s = host.group.match_index(member), trio.current_time()


@dataclass(frozen=True, slots=True)
class _View:
    """A state to send."""

    rows: StoresSnapshot
    exporter: Exporter
    meta: Meta


class Snapshots:
    def __init__(
        self,
        node_log: NodeLog,
        runner: Runner,
        bytes_per_s: int,
        links: PeerLinks,
        sweeper: StoreSweeper,
        shut_members: Callable[[RaftGroup], Sequence[str]] = lambda host: (),
    ) -> None:
        """`shut_members(host)`: members whose replicas are shut and that a snapshot of this node's replica opens
        again."""
        self.sent = self.installed = self.outrun = 0
        self._node_log = node_log
        self._runner = runner
        self._outlet = Outlet(bytes_per_s)
        self._intake = Intake(self._begin, self._needs)
        node_log.memory.measure("snapshots", SNAPSHOTS_SHARE, self._chunk_bytes)
        self._links = links
        self._sweeper = sweeper
        self._shut_members = shut_members
        self._sending: set[tuple[int, str]] = set()
        self._outrun: dict[tuple[int, str], int] = {}
        """Group and member -> how many snapshots for it were outrun in a row."""

    def _chunk_bytes(self) -> int:
        """Of what is being sent and received; at most two snapshots either way."""
        hosts = list(self._node_log.hosts.values())
        return self._intake.chunk_bytes + sum(
            [one.chunk_bytes for host in hosts for one in list(host.sending.values())]
        )

    # -- sending --------------------------------------------------------------------------------------------------

    def _needing(self, host: RaftGroup) -> list[str]:
        """As `needing`, and members whose replicas are shut."""
        return sorted({*needing(host), *self._shut_members(host)})

    async def run(self) -> None:
        """Send to whoever needs one, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for number, host in list(self._node_log.hosts.items()):
                    for member in self._needing(host):
                        if (number, member) not in self._sending:
                            self._sending.add((number, member))
                            nursery.start_soon(self._send, host, member)
                self._forget_outrun()
                self._intake.drop_stale()
                await trio.sleep(LOOK_S)

    def _forget_outrun(self) -> None:
        """Of who needs nothing from here any more."""
        for number, member in list(self._outrun):
            host = self._node_log.hosts.get(number)
            # Who needs a snapshot may still have all that was committed a round ago, and count as not behind.
            if host is None or not (member in self._needing(host) or _is_behind(host, member)):
                del self._outrun[number, member]

    async def _send(self, host: RaftGroup, member: str) -> None:
        key = host.number, member
        outrun = self._outrun.get(key, 0)
        scope = trio.CancelScope()
        pin = LogPin(host.status.applied_index, pin_bytes(outrun), scope.cancel)
        try:
            async with self._outlet.slots:
                if member not in self._needing(host):
                    return
                pin.index = host.status.applied_index
                host.pins[member] = pin
                await self._send_to(host, member, pin, scope, 1 << min(outrun, RATE_DOUBLINGS))
            if not pin.is_lost:
                await _caught_up(host, member, pin)
            if pin.is_lost:
                await self._was_outrun(key)
            elif member in self._shut_members(host):
                await self._was_in_vain(key)
        except (SandqError, OSError) as error:
            log.warning("a snapshot was not sent", group=host.number, to=member, error=str(error))
            await trio.sleep(RETRY_S)
        finally:
            host.pins.pop(member, None)
            self._sending.discard(key)

    async def _was_in_vain(self, key: tuple[int, str]) -> None:
        """Wait before the next attempt: the member is shut again, or still, although it has the snapshot."""
        times = self._outrun[key] = min(self._outrun.get(key, 0) + 1, RATE_DOUBLINGS)
        pause_s = min(RETRY_S * 2**times, RETRY_MOST_S)
        log.warning("a replica is shut although it has a snapshot", group=key[0], to=key[1], again_in_s=pause_s)
        await trio.sleep(pause_s)

    async def _was_outrun(self, key: tuple[int, str]) -> None:
        """Wait before the next attempt."""
        self.outrun += 1
        times = self._outrun.get(key, 0) + 1
        self._outrun[key] = min(times, RATE_DOUBLINGS)
        pause_s = min(RETRY_S * 2 ** self._outrun[key], RETRY_MOST_S)
        log.warning(
            "writes outran a snapshot: it is sent anew, faster",
            group=key[0],
            to=key[1],
            in_s=pause_s,
            remedy="if it stays: write less to this partition until the other node has it",
        )
        await trio.sleep(pause_s)

    async def _send_to(self, host: RaftGroup, member: str, pin: LogPin, scope: trio.CancelScope, times: int) -> None:
        """One attempt, at so many times the rate; ended by `scope`, which the pin cancels."""
        view = await self._view(host)
        log.info("sending a snapshot", group=host.number, to=member, index=view.meta.index, size=view.meta.total_bytes)
        answer: Answer | None = None
        try:
            pin.index = view.meta.index
            sending = host.sending[member] = Sending(view.meta.total_bytes)
            with scope:
                answer = await self._offer(view, node_of(member), sending, times)
        finally:
            host.sending.pop(member, None)
            self._let_go(view.rows)
        if answer is None or answer.verdict is Verdict.HELD:
            return
        if answer.verdict is not Verdict.INSTALLED:
            raise Unavailable(answer.reason)
        self.sent += 1

    async def _offer(self, view: _View, node: str, sending: Sending, times: int) -> Answer:
        """Over one connection after the other: what was sent already need not be sent again."""

        async def read(after: bytes | None) -> Chunk:
            chunk = await self._runner.on_maintenance(partial(view.exporter.chunk, after))
            sending.sent_bytes += len(chunk.data)
            sending.chunk_bytes = len(chunk.data)
            return chunk

        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._links.open_stream(node) as stream:
                    return await send_snapshot(stream, view.meta, read, self._outlet.throttle, times)
            except (SandqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                if attempt == ATTEMPTS or isinstance(error, StorageFailed):
                    raise Unavailable(f"the connection for a snapshot failed: {error}") from error
                await trio.sleep(RETRY_S)
        raise AssertionError

    async def _view(self, host: RaftGroup) -> _View:
        """The state as of the last entry applied."""
        rows, index = await self._runner.ask(partial(self._node_log.view, host))
        journal, pointer = host.group.journal, self._node_log.pointers.get(host.number)
        term = journal.term_at(index)
        if term is None or pointer is None:
            self._let_go(rows)
            raise Unavailable(f"group {host.number} was truncated or closed while its snapshot was taken")
        exporter, members = Exporter(rows, pointer.store), journal.members_at(index)
        try:
            in_tables = await self._runner.on_maintenance(lambda: exporter.total_bytes)
        except BaseException:
            self._let_go(rows)
            raise
        snapshot_id = secrets.token_bytes(SNAPSHOT_ID_BYTES)
        # Rows that are not in tables yet are not in the one, what the tables have compressed is not in the other.
        size = max(in_tables, getattr(host.status, "bytes", 0))
        meta = Meta(host.number, snapshot_id, index, term, members.voters, members.learners, size)
        return _View(rows, exporter, meta)

    def _let_go(self, rows: StoresSnapshot) -> None:
        """Nobody waits for it: who reads of a disk that hangs holds it, and its node has to end all the same."""
        self._runner.hand_to_maintenance(rows.close)

    # -- receiving ------------------------------------------------------------------------------------------------

    def forget(self, group: int) -> None:
        """Drop what has come for a group that runs here no more."""
        self._intake.forget(group)

    async def receive(self, node: str, stream: PeerStream) -> None:
        """What a node offers over a connection."""
        try:
            answer = await self._intake.receive(stream)
        except (SandqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.warning(
                "a snapshot has not come whole; it goes on when it is offered again", peer=node, error=str(error)
            )
            return
        if answer.verdict is Verdict.INSTALLED:
            self.installed += 1
        else:
            log.info("a snapshot was not taken", peer=node, verdict=answer.verdict.value, reason=answer.reason)

    def _needs(self, meta: Meta) -> bool:
        host = self._node_log.hosts.get(meta.group)
        return host is not None and host.status.applied_index < meta.index

    async def _begin(self, meta: Meta) -> _Store | None:
        host = self._node_log.hosts.get(meta.group)
        if host is None or host.group.member not in (*meta.voters, *meta.learners):
            raise Unavailable(f"this node holds no replica of group {meta.group} that the snapshot is for")
        if host.status.applied_index >= meta.index:
            return None
        number = (await self._runner.on_maintenance(self._node_log.pointers.mint))[0]
        self._node_log.check_runs(host)
        self._node_log.filling.add(number)
        return _Store(self._node_log, self._runner, host, number, self._sweeper)


class _Store:
    """A new store while it is filled."""

    def __init__(self, node_log: NodeLog, runner: Runner, host: RaftGroup, number: int, sweeper: StoreSweeper) -> None:
        self._sweeper = sweeper
        self._node_log = node_log
        self._runner = runner
        self._host = host
        self._number = number
        self._importer = Importer(node_log.stores, number)
        self._is_unsure = False
        """After a crash it may be the one that is pointed to, or not: it is no garbage."""

    @property
    def position(self) -> bytes | None:
        return self._importer.position

    async def add(self, data: bytes) -> bool:
        # The apply thread alone hands rows over.
        is_last = await self._runner.ask(partial(self._importer.add, data))
        await self._runner.until_written()
        return is_last

    def drop(self) -> None:
        self._node_log.filling.discard(self._number)
        self._sweeper.sweep_soon()

    async def finish(self, meta: Meta) -> None:
        try:
            await self._runner.on_maintenance(self._node_log.stores.flush)
            await self._runner.between_batches(partial(self._node_log.suspend, self._host, meta.index))
            await self._replace(meta)
        finally:
            if not self._is_unsure:
                self.drop()
        log.info("a snapshot is installed", group=self._host.number, index=meta.index)

    async def _replace(self, meta: Meta) -> None:
        """Let the stopped group go on with the new store. (A node that stops meanwhile leaves it stopped: the next
        start looks where its pointer leads.)"""
        node_log, runner, host = self._node_log, self._runner, self._host
        try:
            # What was under way for the old state is done before the new one takes its place.
            loaded = await runner.ask(partial(node_log.load, host.number, self._number))
            node_log.check_runs(host)
            pointer = StorePointer(
                host.number,
                incarnation_of(host.group.member),
                self._number,
                meta.index,
                meta.term,
                meta.voters,
                meta.learners,
            )
            await runner.on_maintenance(partial(node_log.pointers.update, put=[pointer]))
        except SandqError as error:
            if isinstance(error, StorageFailed) and may_have_happened(error):
                self._is_unsure = True
                log.error("nobody knows which state the next start finds: this node stops", error=error.message)
                node_log.fail(error)
                raise
            await runner.between_batches(partial(node_log.reopen, host, host.replica, host.status))
            raise
        await runner.between_batches(partial(node_log.reopen, host, *loaded))
        # Its records are on the disk when the pass is over in which they were written.
        await runner.between_batches(lambda: None)
