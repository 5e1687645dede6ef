"""Send snapshots of this node's replicas to members that need them, and install snapshots of other nodes.

Sending: the apply thread writes all applied entries, and takes a view of the rows. The maintenance thread reads the
rows in chunks, which are sent over a separate connection. Meanwhile the log keeps the entries after the snapshot, up to
a budget. If new writes exceed the budget before the transfer ends, the snapshot is outrun. Then a new snapshot is
taken, and sent at twice the rate with twice the budget.

Installing: a snapshot is written to a new store. No pointer names this store until all its rows are durable. Then the
old replica is stopped, the pointer is set, and the group continues from the new store.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from sandq.model.logger import get_logger
from sandq.model.members import incarnation_of, node_of
from sandq.storage.files import may_have_happened
from sandq.storage.pointers import StorePointer
from sandq.storage.snapshot import SNAPSHOT_ID_BYTES, Chunk, Exporter, Importer, Meta
from sandq.storage.stores import StoresSnapshot

log = get_logger("sandq.snapshots")

CHECK_S = 0.2
"""Interval in s at which this node looks for members that need a snapshot."""
ATTEMPTS = 5
"""Maximum number of connections for one snapshot. If the last connection fails, a new snapshot is taken."""
RETRY_S = 1.0
"""Pause in s after a failed connection or a failed attempt.

If snapshots are outrun, or leave their replica shut, the pauses are 2, 4, 8 and more times as long."""
RETRY_MOST_S = 60.0
"""Longest pause in s between two attempts to send a snapshot."""
RATE_DOUBLINGS = 6
"""Maximum number of times that the rate is doubled for a snapshot that was outrun."""
STALLED_S = 10.0
"""Maximum time in s without progress while a member receives the log after its snapshot. Then this node stops
waiting."""


def needing(host: RaftGroup) -> list[str]:
    """Return the members to which this node must send a snapshot; none if this node does not lead the group.

    The leader sends snapshots even before it is ready. If all reachable members need a snapshot, the group has no
    majority until they have received the snapshot."""
    return [] if host.failed is not None else sorted(host.group.lagging)


def _is_behind(host: RaftGroup, member: str) -> bool:
    """Return whether this node leads the group, and the member does not have the whole log yet."""
    voters, learners = host.members
    leads = host.group.is_leader and host.failed is None
    return leads and member in (*voters, *learners) and not host.group.has_caught_up(member)


async def _caught_up(host: RaftGroup, member: str, pin: LogPin) -> None:
    """Wait until a member has received the log after its snapshot. If the member makes no progress for `STALLED_S`,
    give up."""
    got, since_s = host.group.match_index(member), trio.current_time()
    while not pin.is_lost and _is_behind(host, member) and trio.current_time() - since_s < STALLED_S:
        await trio.sleep(CHECK_S)
        if host.group.match_index(member) > got:
            got, since_s = host.group.match_index(member), trio.current_time()


@dataclass(frozen=True, slots=True)
class _View:
    """The state of a replica that is sent as a snapshot."""

    rows: StoresSnapshot
    exporter: Exporter
    meta: Meta


class Snapshots:
    """Sends and receives the snapshots of one node."""

    def __init__(
        self,
        node_log: NodeLog,
        runner: Runner,
        bytes_per_s: int,
        links: PeerLinks,
        sweeper: StoreSweeper,
        shut_members: Callable[[RaftGroup], Sequence[str]] = lambda host: (),
    ) -> None:
        """`shut_members(host)`: return the members whose shut replicas would open with a snapshot from this node."""
        self.sent = self.installed = self.outrun = 0
        """Numbers of snapshots: sent and installed by the receiver; installed on this node; outrun."""
        self._node_log = node_log
        self._runner = runner
        self._outlet = Outlet(bytes_per_s)
        self._intake = Intake(self._begin, self._needs)
        node_log.memory.measure("snapshots", SNAPSHOTS_SHARE, self._chunk_bytes)
        self._links = links
        self._sweeper = sweeper
        self._shut_members = shut_members
        self._sending: set[tuple[int, str]] = set()
        """(Group, member) of the attempts in progress."""
        self._outrun: dict[tuple[int, str], int] = {}
        """By group and member: number of consecutive snapshots that failed, because they were outrun or the member
        stayed shut."""

    def _chunk_bytes(self) -> int:
        """Return the total size in bytes of the chunks that are being sent or received."""
        hosts = list(self._node_log.hosts.values())
        return self._intake.chunk_bytes + sum(
            [one.chunk_bytes for host in hosts for one in list(host.sending.values())]
        )

    # -- sending --------------------------------------------------------------------------------------------------

    def _needing(self, host: RaftGroup) -> list[str]:
        """Return the members that need a snapshot: the members of `needing`, and members with a shut replica."""
        return sorted({*needing(host), *self._shut_members(host)})

    async def run(self) -> None:
        """Send snapshots to all members that need a snapshot, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for number, host in list(self._node_log.hosts.items()):
                    for member in self._needing(host):
                        if (number, member) not in self._sending:
                            self._sending.add((number, member))
                            nursery.start_soon(self._send, host, member)
                self._forget_outrun()
                self._intake.drop_stale()
                await trio.sleep(CHECK_S)

    def _forget_outrun(self) -> None:
        """Forget the failures of members that need neither a snapshot nor log entries from this node any more."""
        for number, member in list(self._outrun):
            host = self._node_log.hosts.get(number)
            # Check both conditions: `_is_behind` uses an older commit index, so it may be False for a member that still
            # needs a snapshot.
            if host is None or not (member in self._needing(host) or _is_behind(host, member)):
                del self._outrun[number, member]

    async def _send(self, host: RaftGroup, member: str) -> None:
        """Send a snapshot to a member once a slot is free. Then wait until the member has the log after the snapshot.

        If the attempt fails, is outrun, or leaves the member shut, pause at the end. If the member still needs a
        snapshot, `run` starts the next attempt."""
        key = host.number, member
        outrun = self._outrun.get(key, 0)
        scope = trio.CancelScope()
        pin = LogPin(host.status.applied_index, pin_bytes(outrun), scope.cancel)
        try:
            async with self._outlet.slots:
                if member not in self._needing(host):
                    return
                # Keep the log before the view is taken. `_send_to` then moves the pin to the index of the view.
                pin.index = host.status.applied_index
                host.pins[member] = pin
                await self._send_to(host, member, pin, scope, 1 << min(outrun, RATE_DOUBLINGS))
            if not pin.is_lost:
                await _caught_up(host, member, pin)
            if pin.is_lost:
                await self._wait_as_outrun(key)
            elif member in self._shut_members(host):
                await self._wait_as_still_shut(key)
        except (SandqError, OSError) as error:
            log.warning("a snapshot was not sent", group=host.number, to=member, error=str(error))
            await trio.sleep(RETRY_S)
        finally:
            host.pins.pop(member, None)
            self._sending.discard(key)

    async def _wait_as_still_shut(self, key: tuple[int, str]) -> None:
        """Pause before the next attempt, because the member is still shut after it got the snapshot."""
        times = self._outrun[key] = min(self._outrun.get(key, 0) + 1, RATE_DOUBLINGS)
        pause_s = min(RETRY_S * 2**times, RETRY_MOST_S)
        log.warning("a replica is shut although it has a snapshot", group=key[0], to=key[1], again_in_s=pause_s)
        await trio.sleep(pause_s)

    async def _wait_as_outrun(self, key: tuple[int, str]) -> None:
        """Pause before the next attempt, because new writes have exceeded the budget of the snapshot."""
        self.outrun += 1
        times = self._outrun.get(key, 0) + 1
        self._outrun[key] = min(times, RATE_DOUBLINGS)
        pause_s = min(RETRY_S * 2 ** self._outrun[key], RETRY_MOST_S)
        log.warning(
            "writes outran a snapshot: a new one is sent, faster",
            group=key[0],
            to=key[1],
            in_s=pause_s,
            remedy="if it persists: write less to this partition until the other node has it",
        )
        await trio.sleep(pause_s)

    async def _send_to(self, host: RaftGroup, member: str, pin: LogPin, scope: trio.CancelScope, times: int) -> None:
        """Make one attempt to send a snapshot, at `times` times the rate. If the pin is lost, it cancels `scope`,
        which ends the attempt."""
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
            self._release(view.rows)
        if answer is None or answer.verdict is Verdict.HELD:
            return
        if answer.verdict is not Verdict.INSTALLED:
            raise Unavailable(answer.reason)
        self.sent += 1

    async def _offer(self, view: _View, node: str, sending: Sending, times: int) -> Answer:
        """Offer a snapshot to a node, and return the outcome. If a connection fails, continue over a new connection.

        Raise Unavailable if `ATTEMPTS` connections have failed."""

        async def read(after: bytes | None) -> Chunk:
            """Read the next chunk, and record the progress."""
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
        """Return a view of the replica's state after its last applied entry.

        The caller must release the rows (`_release`). Raise Unavailable if the log was truncated or the group was
        closed meanwhile."""
        rows, index = await self._runner.ask(partial(self._node_log.view, host))
        journal, pointer = host.group.journal, self._node_log.pointers.get(host.number)
        term = journal.term_at(index)
        if term is None or pointer is None:
            self._release(rows)
            raise Unavailable(f"group {host.number} was truncated or closed while its snapshot was taken")
        exporter, members = Exporter(rows, pointer.store), journal.members_at(index)
        try:
            in_tables = await self._runner.on_maintenance(lambda: exporter.total_bytes)
        except BaseException:
            self._release(rows)
            raise
        snapshot_id = secrets.token_bytes(SNAPSHOT_ID_BYTES)
        # Use the larger of two estimates. The tables do not contain rows that are not flushed yet; the status ignores
        # compression.
        size = max(in_tables, getattr(host.status, "bytes", 0))
        meta = Meta(host.number, snapshot_id, index, term, members.voters, members.learners, size)
        return _View(rows, exporter, meta)

    def _release(self, rows: StoresSnapshot) -> None:
        """Close the rows on the maintenance thread, without waiting.

        If a disk hangs, a thread may still hold the rows. The node must be able to end even then."""
        self._runner.hand_to_maintenance(rows.close)

    # -- receiving ------------------------------------------------------------------------------------------------

    def forget(self, group: int) -> None:
        """Drop the unfinished snapshot of a group that no longer runs on this node."""
        self._intake.forget(group)

    async def receive(self, node: str, stream: PeerStream) -> None:
        """Receive the snapshot that a node offers over a connection."""
        try:
            answer = await self._intake.receive(stream)
        except (SandqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.warning("a snapshot is incomplete; it continues when it is offered again", peer=node, error=str(error))
            return
        if answer.verdict is Verdict.INSTALLED:
            self.installed += 1
        else:
            log.info("a snapshot was not installed", peer=node, verdict=answer.verdict.value, reason=answer.reason)

    def _needs(self, meta: Meta) -> bool:
        """Return whether this node's replica lacks entries that the snapshot includes."""
        host = self._node_log.hosts.get(meta.group)
        return host is not None and host.status.applied_index < meta.index

    async def _begin(self, meta: Meta) -> _Store | None:
        """Return a new store for a snapshot; None if this node's replica has the state already. Raise Unavailable."""
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
    """A new store into which a snapshot is written."""

    def __init__(self, node_log: NodeLog, runner: Runner, host: RaftGroup, number: int, sweeper: StoreSweeper) -> None:
        self._sweeper = sweeper
        self._node_log = node_log
        self._runner = runner
        self._host = host
        self._number = number
        self._importer = Importer(node_log.stores, number)
        self._is_unsure = False
        """True if writing the pointer failed with an unknown outcome. Then the pointer may name this store, so keep the
        store."""

    @property
    def position(self) -> bytes | None:
        return self._importer.position

    async def add(self, data: bytes) -> bool:
        """Add a chunk (see `Sink.add`)."""
        # Only the apply thread may pass row changes to the stores.
        is_last = await self._runner.ask(partial(self._importer.add, data))
        await self._runner.until_written()
        return is_last

    def drop(self) -> None:
        """Let the sweeper delete the rows of the store. If a pointer names the store, the sweeper keeps its rows."""
        self._node_log.filling.discard(self._number)
        self._sweeper.sweep_soon()

    async def finish(self, meta: Meta) -> None:
        """Install the snapshot (see `Sink.finish`)."""
        try:
            await self._runner.on_maintenance(self._node_log.stores.flush)
            await self._runner.between_batches(partial(self._node_log.suspend, self._host, meta.index))
            await self._replace(meta)
        finally:
            if not self._is_unsure:
                self.drop()
        log.info("a snapshot is installed", group=self._host.number, index=meta.index)

    async def _replace(self, meta: Meta) -> None:
        """Continue the stopped group with the new store.

        If an error prevents this, continue with the old replica. But if it is unknown which store the pointer names,
        stop this node.

        If the node stops meanwhile, the next start uses the store that the group's pointer names."""
        node_log, runner, host = self._node_log, self._runner, self._host
        try:
            # The apply thread loads the new replica after all tasks for the old replica.
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
                log.error("it is unknown which state the next start finds: this node stops", error=error.message)
                node_log.fail(error)
                raise
            await runner.between_batches(partial(node_log.reopen, host, host.replica, host.status))
            raise
        await runner.between_batches(partial(node_log.reopen, host, *loaded))
        # Wait for the end of the commit batch that writes the records of the new log.
        await runner.between_batches(lambda: None)
