"""Run a node's log on trio and four threads: WAL, apply, rows, maintenance. No stall of one stops another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import outcome
import structlog
import trio

from sandq.broker.event_loop import Signal
from sandq.broker.replication.applier import Apply, Ask
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.shut import ENDLESS_CPU_S, STOPS_NODE, EndlessEntry
from sandq.broker.replication.worker import FairWorker, Worker
from sandq.model.errors import SandqError, StorageFailed, Unavailable
from sandq.storage.wal import Record, WalFull

T = TypeVar("T")

log = structlog.get_logger("sandq.engine")

Thread = Literal["log", "state", "rows", "maintenance"]

ROOM_S = 1.0
"""How often it is tried again to write to a log whose disk is full."""
CLOSE_S = 10.0
"""For a thread to end, beyond the grace of a shutdown; one that hangs is left behind, and the node ends without it."""
ENDLESS_CHECK_S = 1.0
"""Interval at which it is looked whether an entry does not end."""
CHECKPOINT_CHECK_S = 1.0
CHECKPOINT_PAUSE_S = 0.1
"""Between two, at least."""
CHECKPOINT_ENTRIES = 50_000
"""Log entries are kept in memory, and small ones cost more there than on disk."""


class Runner:
    """`wakeup` must be what the log sets when there is something to commit, `inbox` where it publishes. `send(node,
    messages)`: where Raft messages for another node go. `on_pass` is told of each pass that was written: its WAL
    records."""

    def __init__(
        self,
        node_log: NodeLog,
        wakeup: Signal,
        inbox: Inbox,
        send: Callable[[str, list[Any]], None],
        *,
        checkpoint_bytes: int,
        checkpoint_interval_s: float,
        on_pass: Callable[[int], None] = lambda records: None,
    ) -> None:
        self.node_log = node_log
        self._inbox = inbox
        self._wakeup = wakeup
        self._send = send
        self._on_pass = on_pass
        self._checkpoint_bytes = checkpoint_bytes
        self._checkpoint_interval_s = checkpoint_interval_s
        self._ticked = Signal()
        self._log_grown = Signal()
        self._crash: BaseException | None = None
        self._crashed = trio.Event()
        self._apply_ended: StorageFailed | None = None
        self._asking: set[_Reply[Any]] = set()
        self._impatient: set[_Reply[Any]] = set()
        """The same, of clients: they wait no longer than the thread gets on."""
        self.log_full: str | None = None
        """Why nothing gets into the log at present: there is no room. What waits for it goes on once there is."""
        self._passing = False
        self._refused: Sequence[Record] = ()
        """Records of a pass that could not be written."""
        self._is_over = False
        self._between: list[tuple[Callable[[], None], _Reply[Any]]] = []
        self._apply: FairWorker[Apply | Ask] = FairWorker(
            "sandq-apply",
            self._run_applier,
            self._worker_crashed,
            attrgetter("group"),
            self._rest_applier,
            node_log.applier.run_here,
        )
        node_log.applier.beside = self._beside
        self._wal: Worker[Callable[[], None]] = Worker("sandq-wal", _call_all, self._worker_crashed)
        self._maintenance: Worker[Callable[[], None]] = Worker("sandq-maintenance", _call_all, self._worker_crashed)
        self._written = trio.Event()
        """Set when rows are written next, ..."""
        self._awaits_rows = False
        """... if somebody waits for that."""
        self._rows: Worker[bool] = Worker("sandq-rows", self._write_rows, self._worker_crashed)
        self._are_rows_queued = False
        """The thread that writes rows will look whether there are some."""
        self._prepare()

    def _prepare(self) -> None:
        """Make the next segment ahead, if there is room; the pass that needs one will meet it otherwise."""
        try:
            self.node_log.wal.prepare()
        except StorageFailed as error:
            log.warning("no room for the next segment of the log", error=error.message)

    def is_busy(self) -> bool:
        """Whether something is on its way to the log."""
        node_log = self.node_log
        return node_log.failed is None and (self._passing or node_log.group_commit.has_work or node_log.has_held)

    async def drain(self) -> None:
        """Wait until what was queued for the log and for the partitions is done. It may have led to more."""
        if self.is_busy():
            await self.on_wal(lambda: None)
        await self.ask(lambda: None)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Passes and checkpoints, until cancelled; raises what ended a thread."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._inbox.run)
                nursery.start_soon(self._passes)
                nursery.start_soon(self._checkpoints)
                nursery.start_soon(self._watch)
                nursery.start_soon(self._end_endless)
                task_status.started()
        finally:
            self._is_over = True

    async def _passes(self) -> None:
        """Begin passes, one after the other; where the loop hears of the sync of one it goes on with that at once
        (`_committed`)."""
        passes = self.node_log.group_commit
        while True:
            if self.node_log.failed is not None:
                self._end_passes(self.node_log.failed)
                await trio.sleep_forever()
            pause_s = math.inf
            if self._refused:
                await self._commit_again()
                continue
            if not self._passing:
                passes.on_time()
                if passes.has_work or self._between:
                    await self._begin_pass()
                    continue
                pause_s = passes.pause_s()
            if pause_s == math.inf:
                await self._wakeup.wait()
            else:
                with trio.move_on_after(pause_s):
                    await self._wakeup.wait()

    async def _begin_pass(self) -> None:
        self._passing = self._wakeup.is_muted = True
        between, self._between = self._between, []
        for call, _ in between:
            call()
        passes = self.node_log.group_commit
        passes.begin_tick()
        while passes.tick_some():
            await trio.lowlevel.checkpoint()
        if self._end_tick():
            return
        if passes.has_work or self._between:
            await trio.lowlevel.checkpoint()  # the next pass begins at once: others have a turn before it
        self._take_synced()
        self._finish_pass()

    def _end_tick(self) -> bool:
        """Hand the records of a pass to the WAL thread. False: there are none, and it need not be waited for."""
        records, ready = self.node_log.end_tick()
        self._ticked.set()
        if records:
            self._wal.submit(partial(self._commit, records))
        self._submit(ready)  # meanwhile
        return bool(records)

    def _commit(self, records: Sequence[Record]) -> None:
        """On the WAL thread."""
        self._inbox.put(self._committed, records, outcome.capture(self.node_log.commit, records))

    def _committed(self, records: Sequence[Record], result: outcome.Outcome[None]) -> None:
        """The records of a pass are on the disk, or are not."""
        if self._is_over:
            return
        if isinstance(result, outcome.Error) and isinstance(result.error, StorageFailed):
            self._refused = records
            self._wakeup.is_muted = False
            self._wakeup.set()
            return
        result.unwrap()
        self._passed(records)
        passes = self.node_log.group_commit
        nothing_came = not passes.has_work
        self._take_synced()
        # What was synced a tick commits, where no other member has to say so: not a turn of the loop later, unless
        # more has come meanwhile, with which then comes what others are about to bring.
        if nothing_came and passes.is_short and not self._between and self.node_log.failed is None:
            passes.begin_tick()
            passes.tick_some()
            if self._end_tick():
                return
            self._take_synced()
        self._finish_pass()

    async def _commit_again(self) -> None:
        """Wait until there is room on the disk for what could not be written; for anything else it is the end."""
        records, self._refused = self._refused, ()
        try:
            await self.on_wal(lambda: self.node_log.commit(records))
        except StorageFailed as error:
            log.error("the log cannot be written: this node stops taking messages", error=error.message)
            self.node_log.fail(error)
            return
        self._passed(records)
        self._take_synced()
        self._finish_pass()

    def _passed(self, records: Sequence[Record]) -> None:
        self._on_pass(len(records))
        if self._has_log_grown():
            self._log_grown.set()

    def _take_synced(self) -> None:
        """What the pass wrote is on the disk: what is committed by it is applied, and others are told."""
        self._submit(self.node_log.synced())
        for node, messages in self.node_log.group_commit.take_outgoing().items():
            self._send(node, messages)

    def _finish_pass(self) -> None:
        """No pass is under way: who begins them is woken, if there is a reason to begin one, or to look at the time."""
        self._passing = self._wakeup.is_muted = False
        passes = self.node_log.group_commit
        if passes.has_work or self._between or self.node_log.failed is not None or passes.pause_s() < math.inf:
            self._wakeup.set()

    def _end_passes(self, error: StorageFailed) -> None:
        """There are no more of them: whoever waits for one is told."""
        between, self._between = self._between, []
        for _, reply in between:
            reply.settle(outcome.Error(error))
        self._ticked.set()

    def _submit(self, tasks: list[Apply]) -> None:
        """Have them applied: at once, on the loop, where that takes a moment and the thread has nothing to do."""
        if tasks:
            self._inbox.during(partial(self._hand_over, tasks))

    def _hand_over(self, tasks: list[Apply]) -> None:
        # All of them before anything else runs: a sync that is heard of meanwhile brings the next ones.
        for task in tasks[self._apply.run_here(tasks) :]:
            self._apply.submit(task)

    async def _checkpoints(self) -> None:
        last = trio.current_time()
        while True:
            await trio.sleep(CHECKPOINT_PAUSE_S)
            with trio.move_on_after(CHECKPOINT_CHECK_S):
                while not self._has_log_grown():
                    await self._log_grown.wait()
            grown = self.node_log.bytes_since_checkpoint
            old = trio.current_time() - last >= self._checkpoint_interval_s
            large = self._has_log_grown() or self.node_log.entries_kept >= CHECKPOINT_ENTRIES
            if self.node_log.failed is None and (large or (old and grown)):
                await self.checkpoint()
                last = trio.current_time()

    def _has_log_grown(self) -> bool:
        """So much was written since the last checkpoint that another one is due at once: it is in memory as well."""
        return self.node_log.bytes_since_checkpoint >= self._checkpoint_bytes

    async def checkpoint(self) -> None:
        """Bring the stores up to the applied indices on disk, then let go of the log below them."""
        node_log = self.node_log
        try:
            applied = await self.ask(node_log.applied_indices)
            await self.on_maintenance(node_log.stores.flush)
            node_log.truncate(applied)
            for _ in range(2):
                await self._pass_now()
                pinning = await self.on_wal(node_log.release)
                if not node_log.copy_tails(pinning):
                    break
            await self.on_maintenance(self._prepare)
        except StorageFailed as error:
            log.error("checkpoint failed: this node stops taking messages", error=error.message)
            node_log.fail(error)

    async def _pass_now(self) -> None:
        """Wait until the records gathered so far are on their way to the WAL thread, whose next job is then later."""
        node_log = self.node_log
        while node_log.group_commit.records and node_log.failed is None:
            self._wakeup.set()
            await self._ticked.wait()

    async def until_short(self) -> None:
        """Wait while a pass has much to tick: who brings more for it keeps others waiting for their answers."""
        while self.node_log.group_commit.is_long and self.node_log.failed is None:
            self._wakeup.set()
            await self._ticked.wait()

    async def _watch(self) -> None:
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    async def _end_endless(self) -> None:
        """Interrupt the apply thread when an entry uses CPU time without end, so that its replica is shut (ADR 46)."""
        seen: object | None = None
        since_s = 0.0
        while True:
            await trio.sleep(ENDLESS_CHECK_S)
            progress = self.progress_of("state")
            if progress is None or progress != seen:
                seen, since_s = progress, self._apply.cpu_s()
            elif self._apply.cpu_s() - since_s >= ENDLESS_CPU_S and self.node_log.applier.is_applying:
                log.error("an entry that does not end is given up", cpu_s=ENDLESS_CPU_S)
                self._apply.interrupt(EndlessEntry)
                seen = None

    def _run_applier(self, tasks: Iterable[Apply | Ask]) -> None:
        """On the apply thread."""
        self.node_log.applier.run(tasks)
        self._have_rows_written()

    def _rest_applier(self) -> None:
        """Likewise."""
        self.node_log.applier.rest()
        self._have_rows_written()

    def _beside(self) -> Iterator[Apply | Ask]:
        """Likewise, within what takes long: rows of others that were handed over need not wait for its end."""
        self._have_rows_written()
        return self._apply.beside()

    def _have_rows_written(self) -> None:
        if self.node_log.stores.progress is not None and not self._are_rows_queued:
            self._are_rows_queued = True
            self._rows.submit(True)

    def _write_rows(self, told: Iterable[bool]) -> None:
        """On the thread that writes rows."""
        self._are_rows_queued = False  # before it looks: what is handed over from here on is told again
        stores = self.node_log.stores
        while stores.progress is not None:
            stores.write_one()
            if self.node_log.has_held or self._awaits_rows:
                self._inbox.put(self._rows_written)

    def _rows_written(self) -> None:
        self.node_log.propose_again()
        self._awaits_rows = False
        written, self._written = self._written, trio.Event()
        written.set()

    def _worker_crashed(self, crash: BaseException) -> None:
        """On the thread that ended."""
        self._inbox.put(self._stop_after, crash)

    def _stop_after(self, crash: BaseException) -> None:
        if isinstance(crash, StorageFailed):
            # The stores take nothing any more. What the log holds is applied after a restart.
            log.error("the stores cannot be written: this node stops taking messages", error=crash.message)
            self._apply_ended = crash
            for reply in self._asking | self._impatient:
                reply.settle(outcome.Error(crash))
            self.node_log.fail(crash)
            for host in self.node_log.hosts.values():
                host.abandon(crash)
            self._rows_written()
        else:
            self._crash = crash
            self._crashed.set()

    async def close(self, within_s: float = math.inf) -> bool:
        """Let the threads finish what is queued and end them; after it the WAL may be sealed. False when one of them
        has not ended in that time: it hangs in the disk, and nothing that it works with may be closed."""
        deadline_s = time.monotonic() + within_s
        try:
            for worker in (self._apply, self._rows, self._wal, self._maintenance):
                left_s = max(deadline_s - time.monotonic(), 0.0) if math.isfinite(deadline_s) else None
                if not await trio.to_thread.run_sync(worker.close, left_s):
                    return False
            return True
        finally:
            self._inbox.close()

    def progress_of(self, thread: Thread) -> object | None:
        """What changes as a thread gets on with its work; None while there is none."""
        if thread == "log":
            return self._wal.progress
        if thread == "rows":
            return self.node_log.stores.progress
        if thread == "maintenance":
            return self._maintenance.progress
        turn = self._apply.progress
        return None if turn is None else (turn, self.node_log.applier.steps)

    def give_up_questions(self, why: str) -> None:
        """The apply thread stands still: answer the questions of clients that wait for it, with Unavailable."""
        for reply in list(self._impatient):
            reply.settle(outcome.Error(Unavailable(why)))

    # -- calls into threads ---------------------------------------------------------------------------------------

    async def ask(
        self,
        call: Callable[[], T],
        *,
        group: int | None = None,
        patient: bool = True,
        late: Callable[[T], None] = lambda result: None,
    ) -> T:
        """Run on the apply thread, after everything submitted so far, or what was for one group. `patient`: wait also
        while that stands still; otherwise it raises Unavailable then, and may run later. `late`: gets a result that
        nobody waits for any more. An unexpected error of a call for a group is raised as Unavailable: it is about that
        group's rows, and no reason for this node to end."""
        if self._apply_ended is not None:
            raise self._apply_ended
        reply: _Reply[T] = _Reply(late)
        waiting = self._asking if patient else self._impatient
        waiting.add(reply)
        asked = call if group is None else partial(_of_group, call, group)
        self._apply.submit(Ask(lambda: outcome.capture(asked), reply.settle, group))
        try:
            return await reply.wait()
        finally:
            waiting.discard(reply)

    async def between_passes(self, call: Callable[[], T]) -> T:
        """Run on the loop, while nothing of a pass is on its way to the disk. Raises StorageFailed when there are no
        passes any more."""
        if self.node_log.failed is not None:
            raise self.node_log.failed
        reply: _Reply[T] = _Reply()
        self._between.append((lambda: reply.settle(outcome.capture(call)), reply))
        self._wakeup.set()
        return await reply.wait()

    async def on_maintenance(self, call: Callable[[], T]) -> T:
        return await self._on(self._maintenance, call)

    async def until_written(self) -> None:
        """Wait while many rows wait to be written: for who brings them of its own accord. Raises StorageFailed."""
        while self.node_log.stores.is_half_full:
            if self._apply_ended is not None:
                raise self._apply_ended
            written, self._awaits_rows = self._written, True
            # Again: whoever wrote rows just now did not know that somebody waits.
            if self.node_log.stores.is_half_full:
                await written.wait()

    def hand_to_maintenance(self, call: Callable[[], None]) -> None:
        """Have it run there some time, unless the node ends before; it must not raise."""
        self._maintenance.submit(call)

    async def on_wal(self, call: Callable[[], T]) -> T:
        """Run on the WAL thread. Waits for room where the disk is full. Raises StorageFailed."""
        waits = False
        try:
            while True:
                try:
                    return await self._on(self._wal, call)
                except WalFull as full:
                    if self.log_full is None:
                        log.error("the disk is full: nothing is stored until there is room", error=full.message)
                    waits, self.log_full = True, f"the disk is full: {full.message}"
                await trio.sleep(ROOM_S)
        finally:
            if waits:
                self.log_full = None

    async def _on(self, worker: Worker[Callable[[], None]], call: Callable[[], T]) -> T:
        reply: _Reply[T] = _Reply()

        def run() -> None:
            self._inbox.put(reply.settle, outcome.capture(call))

        worker.submit(run)
        return await reply.wait()


class _Reply(Generic[T]):
    """What a thread answers. `late`: gets a result that comes when nobody waits for it."""

    def __init__(self, late: Callable[[T], None] = lambda result: None) -> None:
        self._late = late
        self._event = trio.Event()
        self._outcome: outcome.Outcome[T]
        self._is_given_up = False

    def settle(self, result: outcome.Outcome[T]) -> None:
        """The first time it counts."""
        if self._event.is_set() or self._is_given_up:
            if isinstance(result, outcome.Value):
                self._late(result.value)
            return
        self._outcome = result
        self._event.set()

    async def wait(self) -> T:
        try:
            await self._event.wait()
        except BaseException:
            self._is_given_up = True
            raise
        return self._outcome.unwrap()


def _of_group(call: Callable[[], T], group: int) -> T:
    try:
        return call()
    except (SandqError, *STOPS_NODE):
        raise
    except Exception as error:
        log.exception("a question about a group failed: its rows may be damaged", group=group)
        raise Unavailable(f"this node cannot read what was asked for: {type(error).__name__}: {error}") from error


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()
