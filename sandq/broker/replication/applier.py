"""Apply committed entries, publish the results, and hand over changed rows in large batches.

The applier is synchronous and single-threaded: the node runs it on the apply thread, and a simulation calls it step by
step. While a long entry is applied, the applier runs tasks of other groups from time to time: the entry yields. So an
entry with many messages does not delay a group that has a single message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final

from sandq.broker.replication.replica import Replica
from sandq.broker.replication.shut import STOPS_NODE, EndlessEntry, Step
from sandq.raft import Skip
from sandq.storage.stores import Change, Stores, StoresSnapshot

WRITE_ENTRIES: Final = 64
"""Number of entries, applied since the last write, at which the changed rows are written."""
WRITE_BYTES: Final = 64 << 10
"""Bytes of commands, applied since the last write, at which the changed rows are written.

If one of the limits `WRITE_*` is reached, the changed rows are handed to the stores at once. Otherwise the rows are
handed over after a short pause (`rest`). The limits save time, because one write costs about as much as applying a
small entry."""
WRITE_ROWS: Final = 1000
"""Number of changed rows of one replica at which the rows of all replicas are written."""
WRITE_ROW_BYTES: Final = 1 << 20
"""Bytes of the changed rows of all replicas at which these rows are written.

The limit `WRITE_BYTES` is not enough: a step of a bulk job is a small command that may copy large messages."""

SLICE_S: Final = 0.002
"""Time in s after which an entry yields to other groups. The results of the entry do not depend on this value."""
UNFINISHED_BYTES: Final = 4 << 20
"""Total bytes of half-applied entries above which no entry yields. A half-applied entry of 1 MB occupies 50 MB."""
SHARE: Final = 4
"""Divisor for the next time slice of an entry that has yielded.

If other groups used the thread for a time T, the next time slice is at least T / `SHARE`. So the entry finishes even
under a steady load of large entries in other groups."""
HERE_ENTRIES: Final = 16
"""Maximum number of entries that `run_here` applies at once."""
HERE_BYTES: Final = 16 << 10
"""Maximum bytes of commands that `run_here` applies at once. Applying this many bytes takes about 1 ms."""
DEPTH: Final = 32
"""Maximum number of nested yields. At this depth, the innermost entry runs to its end without yielding."""
PREEMPTED_MOST: Final = 4
"""Maximum number of queries that may be preempted at the same time.

Each of these queries holds a partial answer of up to 16 MiB, which the memory budget does not count."""


@dataclass(frozen=True, slots=True)
class Apply:
    """A task: apply entry `index` of a group. `wanted`: a request waits for its results."""

    group: int
    replica: Replica
    index: int
    command: bytes
    wanted: bool
    skip: Skip | None = None
    """Set if the entry is a SKIP: an order to skip an earlier entry that could not be applied."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A query: a task that calls a function on the apply thread.

    `answered` is called with the return value of `call`, on the event loop."""

    call: Callable[[], Any]
    answered: Callable[[Any], None]
    group: int | None = None
    """Group whose state the call reads: the call runs after all tasks that were submitted earlier for this group.

    None: the call runs after all earlier tasks of all groups. The rows that these tasks changed are handed to the
    stores before the call."""


@dataclass(frozen=True, slots=True)
class DigestView:
    """The rows of a replica right after an entry that asks for a digest. The receiver closes `rows`."""

    group: int
    index: int
    """Raft index of the entry."""
    number: int
    """Number of the requested digest."""
    store: int
    """Store of the replica."""
    rows: StoresSnapshot
    """Snapshot of all stores of the node."""


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of a run, or of a part of it, for the event loop."""

    results: list[tuple[int, int, list[Any]]]
    """(group, Raft index, results of the commands) of each entry whose results are wanted."""
    statuses: dict[int, Any]
    """New status of each changed group."""
    answers: list[tuple[Callable[[Any], None], Any]]
    """(`answered`, return value) of each query."""
    applied_bytes: int = 0
    """Bytes of the commands that were applied, or discarded because their replica is shut."""
    views: Sequence[DigestView] = ()
    shut: Sequence[tuple[int, Replica]] = ()
    """Groups whose replicas on this node were shut in this run."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """The state of one call of `Applier._run`, and the outcome of its tasks that is not published yet."""

    began_s: float
    is_here: bool = False
    """True on a thread that must not wait: no rows are written, and no entry yields."""
    yielded_s: float = 0.0
    """Seconds of the run that went to tasks of other groups while an entry yielded."""
    group: int | None = None
    """Group of the entry that is being applied."""
    entries: int = 0
    changed: dict[int, Replica] = field(default_factory=dict)
    """Replicas changed in this run, by group."""
    unpublished: dict[int, Replica] = field(default_factory=dict)
    """Changed replicas whose status is not published yet, by group."""
    results: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    answers: list[tuple[Ask, Any]] = field(default_factory=list)
    views: list[DigestView] = field(default_factory=list)
    size: int = 0
    """Bytes of commands that were applied or discarded, and are not published yet."""


class Applier:
    def __init__(
        self,
        stores: Stores,
        publish: Callable[[Published], None],
        on_applied: Callable[[int, float], None] = lambda entries, apply_s: None,
        after_entry: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the applier.

        `on_applied(entries, apply_s)` is called after each run. `after_entry` is called after each entry, with two
        exceptions: entries that are applied while another entry yields, and entries that `run_here` applies."""
        self._stores = stores
        self._publish = publish
        self.steps = 0
        """Counter that rises while tasks make progress. A watchdog reads it to detect a stall."""
        self._unwritten: dict[int, Replica] = {}
        """Replicas with changes that are not written yet, by group."""
        self._entries = self._bytes = 0
        """Number of entries applied since the last write, and their bytes."""
        self._on_applied = on_applied
        self._after_entry = after_entry
        self.other_tasks: Callable[[], Iterable[Apply | Ask]] = tuple
        """Function that returns the tasks of idle groups: groups of which no entry is being applied. Set by the
        owner."""
        self._runs: list[_Run] = []
        """The runs in progress, innermost last. All runs except the innermost have yielded."""
        self._unfinished_bytes = 0
        """Bytes of the entries that are being applied."""
        self._open_answers = 0
        """Number of queries that are being answered."""
        self._until_s = 0.0
        """Time in s (`perf_counter`) from which the current task may yield; inf if it never yields."""
        self._shut: list[tuple[int, Replica]] = []
        """Shut replicas and their groups, until they are reported to the event loop."""

    @property
    def is_applying(self) -> bool:
        """Return whether an entry is being applied now. Any thread may ask."""
        runs = self._runs
        return bool(runs) and runs[-1].group is not None

    def run(self, tasks: Iterable[Apply | Ask]) -> None:
        """Run the tasks in order, and publish the outcome. If many rows are changed, first hand them to the stores."""
        self._run(tasks, _Run(began_s=time.perf_counter()))

    def run_here(self, tasks: Sequence[Apply | Ask]) -> int:
        """Run the first of these tasks on a thread that must not wait, and return their number.

        Stop before the first task that is a query, is large, or needs the disk, and after `HERE_ENTRIES` tasks. If rows
        must be written first, run no task."""
        run = _Run(began_s=time.perf_counter(), is_here=True)
        quick = takewhile(partial(self._is_quick, run), tasks)
        if self._must_write(self._unwritten.values()) or (first := next(quick, None)) is None:
            return 0
        self._run(chain([first], quick), run)
        return run.entries

    def _is_quick(self, run: _Run, task: Apply | Ask) -> bool:
        """Return whether `run_here` may apply the task. Only a small entry that needs no disk qualifies."""
        if not isinstance(task, Apply) or run.entries == HERE_ENTRIES or run.size + len(task.command) > HERE_BYTES:
            return False
        if task.replica.failure is not None or task.replica.careful_until or task.skip is not None:
            return False
        try:
            return task.replica.needs_no_disk(task.command)
        except Exception:
            return False  # the apply thread will meet the same error, and shut the replica

    def _run(self, tasks: Iterable[Apply | Ask], run: _Run) -> None:
        """Run tasks, and publish their outcome.

        Calls may be nested: while an entry or a query yields, an inner call runs tasks of other groups. The time of the
        inner call is added to `yielded_s` of the outer call's run.
        """
        self._runs.append(run)
        for task in tasks:
            self.steps += 1
            if isinstance(task, Apply):
                self._apply(task, run)
            else:
                self._answer(task, run)
        if not run.is_here and self._must_write(run.changed.values()):
            # Write before publishing: the receiver of the results counts unwritten rows. By this count it decides
            # whether to propose more.
            self.write()
        self._report(run)
        self._runs.pop()
        self._on_applied(run.entries, time.perf_counter() - run.began_s - run.yielded_s)
        self.steps += 1
        if self._runs:
            self._runs[-1].yielded_s += time.perf_counter() - run.began_s

    def _answer(self, task: Ask, run: _Run) -> None:
        """Run a query, and record its answer. A query of a group may yield like an entry."""
        may_yield = task.group is not None and self._open_answers < PREEMPTED_MOST
        self._until_s = time.perf_counter() + SLICE_S if may_yield else math.inf
        if task.group is None:
            self.write()
        self._open_answers += 1
        # Read `run.answers` after the call: if the query yields, the earlier answers are published, and the list is
        # replaced.
        answer = task.call()
        self._open_answers -= 1
        run.answers.append((task, answer))

    def _apply(self, task: Apply, run: _Run) -> None:
        """Apply an entry, and record its results. If the entry fails, shut the replica."""
        self._until_s = math.inf if run.is_here else time.perf_counter() + SLICE_S
        size = len(task.command)
        run.entries += 1
        run.size += size  # also for discarded entries: the event loop counts their bytes until they are published
        if task.replica.failure is not None:
            return
        run.group = task.group
        # While this entry yields, other runs may write the rows of all replicas in `_unwritten`. So remove this
        # replica, whose entry is half-applied.
        self._unwritten.pop(task.group, None)
        self._unfinished_bytes += size
        try:
            outcome = task.replica.apply(task.index, task.command, task.wanted, task.skip)
        except (Exception, EndlessEntry) as error:
            self._shut_replica(task.group, task.replica, Step.APPLY, error, index=task.index)
            return
        finally:
            run.group = None
            self._unfinished_bytes -= size
        # A query of this run may write the rows of the replica, and so remove the replica from `_unwritten`. So record
        # the change in the run as well: the event loop must learn that the replica changed.
        run.changed[task.group] = run.unpublished[task.group] = self._unwritten[task.group] = task.replica
        self._entries += 1
        self._bytes += size
        if task.replica.careful_until and not self._is_consistent(task):
            return
        if task.wanted:
            run.results.append((task.group, task.index, outcome))
        if task.replica.digests_asked:
            run.views += self._views(task)
        if len(self._runs) == 1 and not run.is_here:
            self._after_entry()

    def _is_consistent(self, task: Apply) -> bool:
        """Compute the status and write the rows after this entry. If one of these steps fails, shut the replica and
        return False."""
        replica = task.replica
        try:
            replica.status()
        except Exception as error:
            self._shut_replica(task.group, replica, Step.STATUS, error, index=task.index)
            return False
        self.write()
        if task.index >= replica.careful_until:
            replica.careful_until = 0
        return replica.failure is None

    def _shut_replica(
        self, group: int, replica: Replica, step: Step, error: BaseException, *, index: int | None = None
    ) -> None:
        """Shut one replica, and remove it from the changed replicas of all runs. The other replicas continue.

        If the error concerns the whole node (`STOPS_NODE`), raise the error and shut no replica."""
        if isinstance(error, STOPS_NODE):
            raise error
        replica.shut(step, error, index=index)
        self._unwritten.pop(group, None)
        if replica.unwritten:
            self._unwritten[group] = replica  # its state before the failed entry must still be written
        for run in self._runs:
            run.changed.pop(group, None)
            run.unpublished.pop(group, None)
        self._shut.append((group, replica))

    def yield_now(self) -> None:
        """Run tasks of other groups if the current entry or query has used up its time slice.

        The state machine calls this function only at points where other groups may change their state."""
        self.steps += 1  # one entry may take longer than the stall timeout: show the watchdog that there is progress
        began_s = time.perf_counter()
        if began_s < self._until_s or len(self._runs) > DEPTH or self._unfinished_bytes > UNFINISHED_BYTES:
            return
        others = iter(self.other_tasks())
        if (first := next(others, None)) is not None:
            self._report(self._runs[-1])
            self.run(chain([first], others))
        ended_s = time.perf_counter()
        self._until_s = ended_s + max(SLICE_S, (ended_s - began_s) / SHARE)

    def _report(self, run: _Run) -> None:
        """Publish the outcome of a run so far.

        If an entry of a group is unfinished, all results of the group are published later, once the entry is done. So
        no answer is published before the results that it depends on."""
        half = run.group if run.group in run.unpublished else None
        # A query without a group follows the tasks of all groups, so its answer must wait, too.
        later = () if half is None else (half, None)
        statuses = {}
        for group, replica in list(run.unpublished.items()):
            if group != half:
                try:
                    statuses[group] = replica.status()
                except Exception as error:
                    self._shut_replica(group, replica, Step.STATUS, error)
                    # An operator may skip the last applied entry of this group, so publish none of the group's results.
                    run.results = [result for result in run.results if result[0] != group]
        results = [result for result in run.results if result[0] != half]
        answers = [(ask.answered, value) for ask, value in run.answers if half is None or ask.group not in later]
        shut, self._shut = self._shut, []
        self._publish(Published(results, statuses, answers, run.size, run.views, shut))
        run.unpublished = {group: replica for group, replica in run.unpublished.items() if group == half}
        run.results = [result for result in run.results if result[0] == half]
        run.answers = [(ask, value) for ask, value in run.answers if half is not None and ask.group in later]
        run.size, run.views = 0, []

    def rest(self) -> None:
        """Write the remaining rows. If replicas are shut, report them to the event loop.

        The owner calls this function if no task has come for a moment."""
        self.write()
        if self._shut:
            shut, self._shut = self._shut, []
            self._publish(Published([], {}, [], shut=shut))

    def _must_write(self, changed: Iterable[Replica]) -> bool:
        """Return whether the rows must be written before the next entry is applied."""
        if self._entries >= WRITE_ENTRIES or self._bytes >= WRITE_BYTES:
            return True
        if any(replica.unwritten >= WRITE_ROWS for replica in changed):
            return True
        return sum([replica.unwritten_bytes for replica in self._unwritten.values()]) >= WRITE_ROW_BYTES

    def _views(self, task: Apply) -> list[DigestView]:
        """Return one view of the replica's rows for each digest that this entry asks for."""
        replica = task.replica
        numbers = list(replica.digests_asked)
        replica.digests_asked.clear()
        self.write()
        if replica.failure is not None:
            return []
        return [DigestView(task.group, task.index, n, replica.store, self._stores.snapshot()) for n in numbers]

    def write(self) -> None:
        """Hand the changes of all applied entries to the stores, which write them and the applied indices together."""
        changes: list[Change] = []
        unwritten, self._unwritten = self._unwritten, {}
        for group, replica in unwritten.items():
            try:
                changes += replica.drain()
            except Exception as error:
                self._shut_replica(group, replica, Step.DRAIN, error)
        self._entries = self._bytes = 0
        if changes:
            self._stores.write(changes)
