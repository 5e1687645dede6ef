"""Run a node's log on trio and four threads: WAL, apply, rows and maintenance.

A commit batch has four steps. The event loop ticks the Raft groups. The WAL thread writes and syncs the records. The
apply thread applies the entries. The rows thread writes the changed rows. Each thread has its own queue, so that a
stalled thread does not stop the other threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import outcome
import trio

from sandq.broker.event_loop import Signal
from sandq.broker.replication.applier import Apply, Ask
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.shut import ENDLESS_CPU_S, STOPS_NODE, EndlessEntry
from sandq.broker.replication.worker import FairWorker, Worker
from sandq.model.errors import SandqError, StorageFailed, Unavailable
from sandq.model.logger import get_logger
from sandq.storage.wal import Record, WalFull

T = TypeVar("T")

log = get_logger("sandq.engine")

Thread = Literal["log", "state", "rows", "maintenance"]

FULL_RETRY_S = 1.0
"""Seconds between attempts to write to the log while the disk is full."""
CLOSE_S = 10.0
"""Seconds that a thread may take to end after the grace period of a shutdown.

If a thread hangs for longer, the node ends without waiting for it."""
ENDLESS_CHECK_S = 1.0
"""Seconds between two checks for an entry that never ends."""
CHECKPOINT_CHECK_S = 1.0
CHECKPOINT_PAUSE_S = 0.1
"""Minimum number of seconds between two checkpoints."""
CHECKPOINT_ENTRIES = 50_000
"""Number of log entries in memory at which a checkpoint is due.

In memory, a small entry takes more space than on disk."""


class Runner:
    """Commit and apply the work of a `NodeLog`, and take checkpoints.

    `wakeup`: the signal that the log sets when there is something to commit. `inbox`: the queue to which the log
    publishes results. `send(node, messages)` sends Raft messages to another node. `on_batch(records)` is called after
    each commit batch, with the number of its WAL records.
    """

    def __init__(
        self,
        node_log: NodeLog,
        wakeup: Signal,
        inbox: Inbox,
        send: Callable[[str, list[Any]], None],
        *,
        checkpoint_bytes: int,
        checkpoint_interval_s: float,
        on_batch: Callable[[int], None] = lambda records: None,
    ) -> None:
        self.node_log = node_log
        self._inbox = inbox
        self._wakeup = wakeup
        self._send = send
        self._on_batch = on_batch
        self._checkpoint_bytes = checkpoint_bytes
        self._checkpoint_interval_s = checkpoint_interval_s
        self._ticked = Signal()
        self._log_grown = Signal()
        self._crash: BaseException | None = None
        self._crashed = trio.Event()
        self._apply_ended: StorageFailed | None = None
        self._asking: set[_Reply[Any]] = set()
        """Replies of pending calls to the apply thread that keep waiting if that thread stalls."""
        self._impatient: set[_Reply[Any]] = set()
        """Replies of pending calls to the apply thread, for clients. These calls fail if that thread stalls."""
        self.log_full: str | None = None
        """Error message while the disk is full and the log cannot be written. Pending writes continue once there is
        space."""
        self._is_committing = False
        self._refused: Sequence[Record] = ()
        """Records of a commit batch that could not be written."""
        self._is_over = False
        self._between: list[tuple[Callable[[], None], _Reply[Any]]] = []
        """Calls to run before the next commit batch begins, and their replies (see `between_batches`)."""
        self._apply: FairWorker[Apply | Ask] = FairWorker(
            "sandq-apply",
            self._run_applier,
            self._worker_crashed,
            attrgetter("group"),
            self._rest_applier,
            node_log.applier.run_here,
        )
        node_log.applier.other_tasks = self._others
        self._wal: Worker[Callable[[], None]] = Worker("sandq-wal", _call_all, self._worker_crashed)
        self._maintenance: Worker[Callable[[], None]] = Worker("sandq-maintenance", _call_all, self._worker_crashed)
        self._written = trio.Event()
        """Set after the next write of rows if `_awaits_rows` is True."""
        self._awaits_rows = False
        """True if a task waits for `_written`."""
        self._rows: Worker[bool] = Worker("sandq-rows", self._write_rows, self._worker_crashed)
        self._are_rows_queued = False
        """True if a job is queued for the rows thread, which will write all rows that are queued by then."""
        self._prepare()

    def _prepare(self) -> None:
        """Preallocate the next segment of the log.

        If the disk has no space, only log a warning. The commit batch that needs the segment waits for space."""
        try:
            self.node_log.wal.prepare()
        except StorageFailed as error:
            log.warning("no space for the next segment of the log", error=error.message)

    def is_busy(self) -> bool:
        """Return whether records are being written to the log, or will be soon."""
        node_log = self.node_log
        return node_log.failed is None and (self._is_committing or node_log.group_commit.has_work or node_log.has_held)

    async def drain(self) -> None:
        """Wait until all work that is queued now for the log and the partitions is done."""
        if self.is_busy():
            await self.on_wal(lambda: None)
        await self.ask(lambda: None)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run commit batches and checkpoints until cancelled. Raise the error that ended a thread."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._inbox.run)
                nursery.start_soon(self._run_batches)
                nursery.start_soon(self._checkpoints)
                nursery.start_soon(self._watch)
                nursery.start_soon(self._end_endless)
                task_status.started()
        finally:
            self._is_over = True

    async def _run_batches(self) -> None:
        """Begin commit batches one after the other.

        A batch may also be begun by `_committed`, as soon as the event loop learns that the previous batch is
        synced."""
        group_commit = self.node_log.group_commit
        while True:
            if self.node_log.failed is not None:
                self._end_batches(self.node_log.failed)
                await trio.sleep_forever()
            pause_s = math.inf  # without a deadline, wait until `_wakeup` is set
            if self._refused:
                await self._retry_commit()
                continue
            if not self._is_committing:
                group_commit.on_time()
                if group_commit.has_work or self._between:
                    await self._begin_batch()
                    continue
                pause_s = group_commit.pause_s()
            if pause_s == math.inf:
                await self._wakeup.wait()
            else:
                with trio.move_on_after(pause_s):
                    await self._wakeup.wait()

    async def _begin_batch(self) -> None:
        """Run a tick in parts, and hand its records to the WAL thread. If there are no records, end the batch at
        once."""
        self._is_committing = self._wakeup.is_muted = True
        between, self._between = self._between, []
        for call, _ in between:
            call()
        group_commit = self.node_log.group_commit
        group_commit.begin_tick()
        while group_commit.tick_some():
            await trio.lowlevel.checkpoint()
        if self._end_tick():
            return
        if group_commit.has_work or self._between:
            await trio.lowlevel.checkpoint()  # the next commit batch begins at once: let other tasks run before it
        self._take_synced()
        self._finish_batch()

    def _end_tick(self) -> bool:
        """Hand the records of a commit batch to the WAL thread. Return False if the batch has no records."""
        records, ready = self.node_log.end_tick()
        self._ticked.set()
        if records:
            self._wal.submit(partial(self._commit, records))
        self._submit(ready)  # apply these entries while the records are written
        return bool(records)

    def _commit(self, records: Sequence[Record]) -> None:
        """Write and sync the records, and report the outcome to the event loop. Runs on the WAL thread."""
        self._inbox.put(self._committed, records, outcome.capture(self.node_log.commit, records))

    def _committed(self, records: Sequence[Record], result: outcome.Outcome[None]) -> None:
        """Handle the outcome of writing the records of a commit batch. If the write failed, keep the records for a
        retry."""
        if self._is_over:
            return
        if isinstance(result, outcome.Error) and isinstance(result.error, StorageFailed):
            self._refused = records
            self._wakeup.is_muted = False
            self._wakeup.set()
            return
        result.unwrap()
        self._batch_written(records)
        group_commit = self.node_log.group_commit
        has_no_new_work = not group_commit.has_work
        self._take_synced()
        # In a group without other voters, the next tick commits the entries that were just synced. Run that tick now
        # instead of in the next iteration of the event loop. If new work has come, wait for that iteration: other tasks
        # may add more work to the tick before.
        if has_no_new_work and group_commit.is_short and not self._between and self.node_log.failed is None:
            group_commit.begin_tick()
            group_commit.tick_some()
            if self._end_tick():
                return
            self._take_synced()
        self._finish_batch()

    async def _retry_commit(self) -> None:
        """Write the refused records again. If the disk is full, wait for space. After any other error, stop writing."""
        records, self._refused = self._refused, ()
        try:
            await self.on_wal(lambda: self.node_log.commit(records))
        except StorageFailed as error:
            log.error("the log cannot be written: this node stops accepting messages", error=error.message)
            self.node_log.fail(error)
            return
        self._batch_written(records)
        self._take_synced()
        self._finish_batch()

    def _batch_written(self, records: Sequence[Record]) -> None:
        """Report a written commit batch. If a checkpoint is due, wake the task that takes checkpoints."""
        self._on_batch(len(records))
        if self._has_log_grown():
            self._log_grown.set()

    def _take_synced(self) -> None:
        """Apply the entries that the synced commit batch committed. Send the messages that had to wait for the sync."""
        self._submit(self.node_log.synced())
        for node, messages in self.node_log.group_commit.take_outgoing().items():
            self._send(node, messages)

    def _finish_batch(self) -> None:
        """End the commit batch. If there is work or a deadline, wake the task that begins the next batch."""
        self._is_committing = self._wakeup.is_muted = False
        group_commit = self.node_log.group_commit
        if (
            group_commit.has_work
            or self._between
            or self.node_log.failed is not None
            or group_commit.pause_s() < math.inf
        ):
            self._wakeup.set()

    def _end_batches(self, error: StorageFailed) -> None:
        """Fail the calls that wait for the end of a commit batch, because the node runs no batches any more."""
        between, self._between = self._between, []
        for _, reply in between:
            reply.settle(outcome.Error(error))
        self._ticked.set()

    def _submit(self, tasks: list[Apply]) -> None:
        """Apply entries. If the apply thread is idle, apply the first quick entries at once on the event loop."""
        if tasks:
            self._inbox.during(partial(self._hand_over, tasks))

    def _hand_over(self, tasks: list[Apply]) -> None:
        """Apply the first tasks here if they are quick, and submit the others to the apply thread."""
        # Submit all tasks before other calls run: a sync that is reported in between could submit later entries first.
        for task in tasks[self._apply.run_here(tasks) :]:
            self._apply.submit(task)

    async def _checkpoints(self) -> None:
        """Take checkpoints until cancelled: one whenever the log has grown enough, or the interval has passed."""
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
        """Return whether a checkpoint is due because of the bytes written to the log since the last checkpoint."""
        return self.node_log.bytes_since_checkpoint >= self._checkpoint_bytes

    async def checkpoint(self) -> None:
        """Make the stores durable up to the applied indices. Then release the log entries below these indices."""
        node_log = self.node_log
        try:
            applied = await self.ask(node_log.applied_indices)
            await self.on_maintenance(node_log.stores.flush)
            node_log.truncate(applied)
            # If tails of logs keep old segments, append the short tails again, then release the segments.
            for _ in range(2):
                await self._flush_batch()
                pinning = await self.on_wal(node_log.release)
                if not node_log.copy_tails(pinning):
                    break
            await self.on_maintenance(self._prepare)
        except StorageFailed as error:
            log.error("checkpoint failed: this node stops accepting messages", error=error.message)
            node_log.fail(error)

    async def _flush_batch(self) -> None:
        """Wait until all records so far are handed to the WAL thread.

        A job that is submitted to that thread afterwards runs after the write of these records."""
        node_log = self.node_log
        while node_log.group_commit.records and node_log.failed is None:
            self._wakeup.set()
            await self._ticked.wait()

    async def until_short(self) -> None:
        """Wait while many groups must be ticked.

        Background tasks call this function before they add groups. The additional groups would delay the answers to
        clients."""
        while self.node_log.group_commit.is_long and self.node_log.failed is None:
            self._wakeup.set()
            await self._ticked.wait()

    async def _watch(self) -> None:
        """Raise the error that ended a thread."""
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    async def _end_endless(self) -> None:
        """Interrupt the apply thread if an entry uses much CPU time without progress. Then its replica is shut (ADR
        46)."""
        seen: object | None = None
        since_s = 0.0
        while True:
            await trio.sleep(ENDLESS_CHECK_S)
            progress = self.progress_of("state")
            if progress is None or progress != seen:
                seen, since_s = progress, self._apply.cpu_s()
            elif self._apply.cpu_s() - since_s >= ENDLESS_CPU_S and self.node_log.applier.is_applying:
                log.error("an entry that does not end is interrupted", cpu_s=ENDLESS_CPU_S)
                self._apply.interrupt(EndlessEntry)
                seen = None

    def _run_applier(self, tasks: Iterable[Apply | Ask]) -> None:
        """Run tasks. Runs on the apply thread."""
        self.node_log.applier.run(tasks)
        self._have_rows_written()

    def _rest_applier(self) -> None:
        """Do the deferred work of the applier. Runs on the apply thread."""
        self.node_log.applier.rest()
        self._have_rows_written()

    def _others(self) -> Iterator[Apply | Ask]:
        """Return tasks of other groups, because a long task yields. Runs on the apply thread.

        Also start to write the rows that are queued, so that they need not wait for the end of the long task."""
        self._have_rows_written()
        return self._apply.others()

    def _have_rows_written(self) -> None:
        """Queue a job for the rows thread if there are rows to write."""
        if self.node_log.stores.progress is not None and not self._are_rows_queued:
            self._are_rows_queued = True
            self._rows.submit(True)

    def _write_rows(self, signals: Iterable[bool]) -> None:
        """Write queued rows. Runs on the rows thread."""
        self._are_rows_queued = False  # before the loop: rows that come after its last check need another job
        stores = self.node_log.stores
        while stores.progress is not None:
            stores.write_one()
            if self.node_log.has_held or self._awaits_rows:
                self._inbox.put(self._rows_written)

    def _rows_written(self) -> None:
        """Continue after rows were written: let groups propose again, and wake the tasks in `until_written`."""
        self.node_log.propose_again()
        self._awaits_rows = False
        written, self._written = self._written, trio.Event()
        written.set()

    def _worker_crashed(self, crash: BaseException) -> None:
        """Report the exception that ended a thread to the event loop. Called on that thread."""
        self._inbox.put(self._stop_after, crash)

    def _stop_after(self, crash: BaseException) -> None:
        """Handle the exception that ended a thread.

        If the stores failed, the process goes on, but it applies no more entries, and requests and queries fail.
        Otherwise, stop the node."""
        if isinstance(crash, StorageFailed):
            # The stores accept no more rows. The remaining entries of the log are applied after a restart.
            log.error("the stores cannot be written: this node stops accepting messages", error=crash.message)
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
        """Let the threads run their queued work, then end them. After that the WAL may be sealed.

        Return False if a thread has not ended within `within_s`. Such a thread hangs in a disk operation. The caller
        must not close anything that this thread uses."""
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
        """Return a value that changes while a thread makes progress; None if the thread has no work."""
        if thread == "log":
            return self._wal.progress
        if thread == "rows":
            return self.node_log.stores.progress
        if thread == "maintenance":
            return self._maintenance.progress
        batch = self._apply.progress
        return None if batch is None else (batch, self.node_log.applier.steps)

    def give_up_queries(self, why: str) -> None:
        """Fail the pending calls of clients with Unavailable, because the apply thread is stalled."""
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
        """Run `call` on the apply thread, after all tasks that were submitted so far. If `group` is given, only tasks
        of this group must end before.

        If the thread stalls, a `patient` call keeps waiting. Any other call raises Unavailable, but may still run
        later. If the caller no longer waits when the call ends, `late(result)` is called. If a call for a group raises
        an unexpected error, raise Unavailable. Such an error concerns only the rows of that group, so the node must
        continue."""
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

    async def between_batches(self, call: Callable[[], T]) -> T:
        """Run `call` on the loop while no commit batch is in progress.

        If the node has stopped writing, raise StorageFailed."""
        if self.node_log.failed is not None:
            raise self.node_log.failed
        reply: _Reply[T] = _Reply()
        self._between.append((lambda: reply.settle(outcome.capture(call)), reply))
        self._wakeup.set()
        return await reply.wait()

    async def on_maintenance(self, call: Callable[[], T]) -> T:
        """Run `call` on the maintenance thread."""
        return await self._on(self._maintenance, call)

    async def until_written(self) -> None:
        """Wait while many rows are queued to be written. Background tasks call this function before they add rows.
        Raise StorageFailed."""
        while self.node_log.stores.is_half_full:
            if self._apply_ended is not None:
                raise self._apply_ended
            written, self._awaits_rows = self._written, True
            # Check again: if the rows were written just before `_awaits_rows` was set, `written` is never set.
            if self.node_log.stores.is_half_full:
                await written.wait()

    def hand_to_maintenance(self, call: Callable[[], None]) -> None:
        """Queue `call` for the maintenance thread. If the node ends before, the call is dropped. The call must not
        raise."""
        self._maintenance.submit(call)

    async def on_wal(self, call: Callable[[], T]) -> T:
        """Run `call` on the WAL thread. If the disk is full, wait for space and try again. Raise StorageFailed."""
        waits = False
        try:
            while True:
                try:
                    return await self._on(self._wal, call)
                except WalFull as full:
                    if self.log_full is None:
                        log.error("the disk is full: nothing is stored until there is space", error=full.message)
                    waits, self.log_full = True, f"the disk is full: {full.message}"
                await trio.sleep(FULL_RETRY_S)
        finally:
            if waits:
                self.log_full = None

    async def _on(self, worker: Worker[Callable[[], None]], call: Callable[[], T]) -> T:
        """Run `call` on a worker's thread, and return its result."""
        reply: _Reply[T] = _Reply()

        def run() -> None:
            self._inbox.put(reply.settle, outcome.capture(call))

        worker.submit(run)
        return await reply.wait()


class _Reply(Generic[T]):
    """The future result of a call on a thread. `late(result)` is called if the caller no longer waits for the
    result."""

    def __init__(self, late: Callable[[T], None] = lambda result: None) -> None:
        self._late = late
        self._event = trio.Event()
        self._outcome: outcome.Outcome[T]
        self._is_given_up = False

    def settle(self, result: outcome.Outcome[T]) -> None:
        """Set the outcome, unless an outcome is set. If the caller no longer waits, pass a result to `late`."""
        if self._event.is_set() or self._is_given_up:
            if isinstance(result, outcome.Value):
                self._late(result.value)
            return
        self._outcome = result
        self._event.set()

    async def wait(self) -> T:
        """Return the result, or raise the error of the call."""
        try:
            await self._event.wait()
        except BaseException:
            self._is_given_up = True
            raise
        return self._outcome.unwrap()


def _of_group(call: Callable[[], T], group: int) -> T:
    """Run a call for one group. Raise an unexpected error as Unavailable."""
    try:
        return call()
    except (SandqError, *STOPS_NODE):
        raise
    except Exception as error:
        log.exception("a query of a group failed: its rows may be damaged", group=group)
        raise Unavailable(f"this node cannot read the requested data: {type(error).__name__}: {error}") from error


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Run the queued calls of a worker."""
    for call in calls:
        call()
