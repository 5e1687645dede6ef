"""Applies committed entries, publishes what came of them, and hands over the rows: those of many small runs together.

Sync and single-threaded by itself: the node runs it on the apply thread, a simulation steps it. An entry that takes
long gives way now and then, and what other groups have to do is done meanwhile, within it: one entry of many messages
does not make who has a single one wait for all of them.
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
WRITE_BYTES: Final = 64 << 10
"""Of commands ..."""
WRITE_ROWS: Final = 1000
"""... what they changed in one replica ..."""
WRITE_ROW_BYTES: Final = 1 << 20
"""... and bytes of it, in all of them: a step of a job is a small command, and may copy large messages. With so much of
any of these rows are written at once; with less once nothing has come for a moment (`rest`), as a write costs about as
much as to apply a small entry."""

SLICE_S: Final = 0.002
"""So long, at least, an entry is applied until it gives way. What is applied does not depend on it."""
HALF_BYTES: Final = 4 << 20
"""So many bytes of entries, and what one brings beyond, give way at once: half done, one of 1 MB takes 50 MB."""
SHARE: Final = 4
"""Others have had at most so many times of what the entry had that gives way to them: else who always has a large one
to be applied would let it never come to its end. But for what they had last, which may have taken long by itself."""
HERE_ENTRIES: Final = 8
HERE_BYTES: Final = 16 << 10
"""So many entries, and bytes of them, are applied at once by who must not wait: it takes about a millisecond."""
DEPTH: Final = 32
"""So many entries give way to one another at most: the last one goes on to its end."""
HALF_ANSWERS: Final = 4
"""So many questions give way at once: what is read for an answer, up to 16 MiB, is in no account until it is whole."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply entry `index` of a group."""

    group: int
    replica: Replica
    index: int
    command: bytes
    wanted: bool
    skip: Skip | None = None
    """Set if the entry is a SKIP of an earlier one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Call something on the thread that owns the state; `answered(value)` runs on the loop."""

    call: Callable[[], Any]
    answered: Callable[[Any], None]
    group: int | None = None
    """It comes behind what was submitted for that group; None: behind everything, the rows of which are handed over."""


@dataclass(frozen=True, slots=True)
class DigestView:
    """What a replica had stored as of an entry that asks for a digest of it. Who gets it closes `rows`."""

    group: int
    index: int
    number: int
    store: int
    rows: StoresSnapshot


@dataclass(frozen=True, slots=True)
class Published:
    """What a run tells the loop: results by (group, index), then a status for each group that changed."""

    results: list[tuple[int, int, list[Any]]]
    statuses: dict[int, Any]
    answers: list[tuple[Callable[[Any], None], Any]]
    applied_bytes: int = 0
    """Of the entries that were applied."""
    views: Sequence[DigestView] = ()
    shut: Sequence[tuple[int, Replica]] = ()
    """Groups whose replicas here were shut in this run."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """What is done in one go, and what came of it."""

    began_s: float
    is_here: bool = False
    """By who must not wait: no rows are written, and no entry gives way."""
    beside_s: float = 0.0
    """Of it, what others took that an entry gave way to."""
    group: int | None = None
    """Of which an entry is being applied."""
    entries: int = 0
    changed: dict[int, Replica] = field(default_factory=dict)
    """By group."""
    untold: dict[int, Replica] = field(default_factory=dict)
    """Those of which the loop has yet to be told, and the rest of what it is told."""
    results: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    answers: list[tuple[Ask, Any]] = field(default_factory=list)
    views: list[DigestView] = field(default_factory=list)
    size: int = 0


class Applier:
    def __init__(
        self,
        stores: Stores,
        publish: Callable[[Published], None],
        on_applied: Callable[[int, float], None] = lambda entries, apply_s: None,
        after_entry: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_applied` is told of each run: entries, and the seconds it took to apply them. `after_entry`: called after
        each of them, unless another one gives way to it, or nobody must wait."""
        self._stores = stores
        self._publish = publish
        self.steps = 0
        """Rises with everything that is done: who looks from outside sees that it goes on."""
        self._unwritten: dict[int, Replica] = {}
        """By group: what was applied since its rows were written last, ..."""
        self._entries = self._bytes = 0
        """... how many entries, and bytes of them."""
        self._on_applied = on_applied
        self._after_entry = after_entry
        self.beside: Callable[[], Iterable[Apply | Ask]] = tuple
        """What other groups have to do than those of which an entry is being applied; set by who runs it."""
        self._runs: list[_Run] = []
        """The one that is being done last; those before it have given way."""
        self._half_bytes = 0
        """Of the entries that are being applied."""
        self._half_answers = 0
        """Questions that are being answered."""
        self._until_s = 0.0
        """How long what is being done goes on at least; inf: it does not give way."""
        self._shut: list[tuple[int, Replica]] = []
        """Replicas that were shut and of which the loop has yet to be told, by group."""

    @property
    def is_applying(self) -> bool:
        """Whether an entry is being applied at this moment. For any thread."""
        runs = self._runs
        return bool(runs) and runs[-1].group is not None

    def run(self, tasks: Iterable[Apply | Ask]) -> None:
        """Apply in order, hand rows over if there is much, and publish."""
        self._run(tasks, _Run(began_s=time.perf_counter()))

    def run_here(self, tasks: Sequence[Apply | Ask]) -> int:
        """The same for who must not wait: of the first, as long as they are few, small and need no disk. How many."""
        run = _Run(began_s=time.perf_counter(), is_here=True)
        quick = takewhile(partial(self._is_quick, run), tasks)
        if self._is_much(self._unwritten.values()) or (first := next(quick, None)) is None:
            return 0
        self._run(chain([first], quick), run)
        return run.entries

    def _is_quick(self, run: _Run, task: Apply | Ask) -> bool:
        if not isinstance(task, Apply) or run.entries == HERE_ENTRIES or run.size + len(task.command) > HERE_BYTES:
            return False
        if task.replica.failure is not None or task.replica.careful_until or task.skip is not None:
            return False
        try:
            return task.replica.needs_no_disk(task.command)
        except Exception:
            return False  # the apply thread meets the same error, and shuts the replica

    def _run(self, tasks: Iterable[Apply | Ask], run: _Run) -> None:
        self._runs.append(run)
        for task in tasks:
            self.steps += 1
            if isinstance(task, Apply):
                self._apply(task, run)
            else:
                # A question of a partition may give way as its entries do.
                gives_way = task.group is not None and self._half_answers < HALF_ANSWERS
                self._until_s = time.perf_counter() + SLICE_S if gives_way else math.inf
                if task.group is None:
                    self.write()
                self._half_answers += 1
                answer = task.call()  # what was answered before it is told meanwhile
                self._half_answers -= 1
                run.answers.append((task, answer))
        if not run.is_here and self._is_much(run.changed.values()):
            self.write()  # before it is told: what is proposed next goes by what waits to be written
        self._tell(run)
        self._runs.pop()
        self._on_applied(run.entries, time.perf_counter() - run.began_s - run.beside_s)
        self.steps += 1
        if self._runs:
            self._runs[-1].beside_s += time.perf_counter() - run.began_s

    def _apply(self, task: Apply, run: _Run) -> None:
        self._until_s = math.inf if run.is_here else time.perf_counter() + SLICE_S
        size = len(task.command)
        run.entries += 1
        run.size += size  # also what is discarded: the loop counts what is handed over until it is told
        if task.replica.failure is not None:
            return
        run.group = task.group
        # While it gives way others may write what is unwritten: no rows of half an entry.
        self._unwritten.pop(task.group, None)
        self._half_bytes += size
        try:
            outcome = task.replica.apply(task.index, task.command, task.wanted, task.skip)
        except (Exception, EndlessEntry) as error:
            self._shut_replica(task.group, task.replica, Step.APPLY, error, index=task.index)
            return
        finally:
            run.group = None
            self._half_bytes -= size
        # A question among the tasks may write what is unwritten, and still the loop must learn what changed.
        run.changed[task.group] = run.untold[task.group] = self._unwritten[task.group] = task.replica
        self._entries += 1
        self._bytes += size
        if task.replica.careful_until and not self._is_whole(task):
            return
        if task.wanted:
            run.results.append((task.group, task.index, outcome))
        if task.replica.digests_asked:
            run.views += self._views(task)
        if len(self._runs) == 1 and not run.is_here:
            self._after_entry()

    def _is_whole(self, task: Apply) -> bool:
        """Sum up and write the state behind this very entry. False: that has shut the replica."""
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
        """Shut one replica at its rows, and let all others go on. Raises what is not about this replica."""
        if isinstance(error, STOPS_NODE):
            raise error
        replica.shut(step, error, index=index)
        self._unwritten.pop(group, None)
        if replica.unwritten:
            self._unwritten[group] = replica  # it has gone back to the state before the entry, and keeps that
        for run in self._runs:
            run.changed.pop(group, None)
            run.untold.pop(group, None)
        self._shut.append((group, replica))

    def give_way(self) -> None:
        """Do what other groups have to do, if the entry that is being applied, or the question of a group, has taken
        long since it last did this: it calls this where all may change but for its own group."""
        self.steps += 1  # one entry may take longer than a stall, and goes on all the same
        began_s = time.perf_counter()
        if began_s < self._until_s or len(self._runs) > DEPTH or self._half_bytes > HALF_BYTES:
            return
        others = iter(self.beside())
        if (first := next(others, None)) is not None:
            self._tell(self._runs[-1])
            self.run(chain([first], others))
        ended_s = time.perf_counter()
        self._until_s = ended_s + max(SLICE_S, (ended_s - began_s) / SHARE)

    def _tell(self, run: _Run) -> None:
        """Tell the loop what came of a run so far. What an entry has changed by half is told when it is done, and what
        came of those of its group before it with that: no answer comes before the results that it rests on."""
        half = run.group if run.group in run.untold else None
        later = () if half is None else (half, None)
        statuses = {}
        for group, replica in list(run.untold.items()):
            if group != half:
                try:
                    statuses[group] = replica.status()
                except Exception as error:
                    self._shut_replica(group, replica, Step.STATUS, error)
                    # An operator may skip the last of these entries: none of them may be acknowledged.
                    run.results = [result for result in run.results if result[0] != group]
        results = [result for result in run.results if result[0] != half]
        answers = [(ask.answered, value) for ask, value in run.answers if half is None or ask.group not in later]
        shut, self._shut = self._shut, []
        self._publish(Published(results, statuses, answers, run.size, run.views, shut))
        run.untold = {group: replica for group, replica in run.untold.items() if group == half}
        run.results = [result for result in run.results if result[0] == half]
        run.answers = [(ask, value) for ask, value in run.answers if half is not None and ask.group in later]
        run.size, run.views = 0, []

    def rest(self) -> None:
        """Nothing has come for a moment: write what is left."""
        self.write()
        if self._shut:
            shut, self._shut = self._shut, []
            self._publish(Published([], {}, [], shut=shut))

    def _is_much(self, changed: Iterable[Replica]) -> bool:
        """Whether rows are to be written before anything else is applied."""
        if self._entries >= WRITE_ENTRIES or self._bytes >= WRITE_BYTES:
            return True
        if any(replica.unwritten >= WRITE_ROWS for replica in changed):
            return True
        return sum([replica.unwritten_bytes for replica in self._unwritten.values()]) >= WRITE_ROW_BYTES

    def _views(self, task: Apply) -> list[DigestView]:
        """Its rows as of this very entry, for each digest that it asks for."""
        replica = task.replica
        numbers = list(replica.digests_asked)
        replica.digests_asked.clear()
        self.write()
        if replica.failure is not None:
            return []
        return [DigestView(task.group, task.index, n, replica.store, self._stores.snapshot()) for n in numbers]

    def write(self) -> None:
        """Hand over every change of the entries applied so far, with their applied indices, to be written together."""
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
