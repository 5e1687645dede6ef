"""Applies committed entries, publishes what came of them, and writes the rows: those of many small runs together.

Sync and single-threaded by itself: the node runs it on the apply thread, a simulation steps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandq.broker.replication.replica import Replica
from sandq.storage.stores import Stores, StoresSnapshot

WRITE_ENTRIES: Final = 64
WRITE_BYTES: Final = 64 << 10
"""Of commands ..."""
WRITE_ROWS: Final = 1000
"""... what they changed in one replica ..."""
WRITE_ROW_BYTES: Final = 1 << 20
"""... and bytes of it, in all of them: a step of a job is a small command, and may copy large messages. With so much of
any of these rows are written at once; with less once nothing has come for a moment (`rest`), as a write costs about as
much as to apply a small entry."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply entry `index` of a group."""

    group: int
    replica: Replica
    index: int
    command: bytes
    wanted: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Call something on the thread that owns the state; `answered(value)` runs on the loop."""

    call: Callable[[], Any]
    answered: Callable[[Any], None]
    group: int | None = None
    """It comes behind what was submitted for that group; None: behind everything, the rows of which are written."""


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


class Applier:
    def __init__(
        self,
        stores: Stores,
        publish: Callable[[Published], None],
        on_applied: Callable[[int, float, float], None] = lambda entries, apply_s, write_s: None,
        after_entry: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_applied` is told of each run: entries, and the seconds it took to apply them and to write rows, 0 if none
        were. `after_entry`: called after each of them."""
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

    def run(self, tasks: Iterable[Apply | Ask]) -> None:
        """Apply in order, publish, then write if there is much: the WAL is the truth, so nobody waits for LevelDB."""
        began = time.perf_counter()
        entries = size = 0
        results: list[tuple[int, int, list[Any]]] = []
        answers: list[tuple[Callable[[Any], None], Any]] = []
        changed: dict[int, Replica] = {}
        views: list[DigestView] = []
        for task in tasks:
            self.steps += 1
            if isinstance(task, Apply):
                entries += 1
                size += len(task.command)
                outcome = task.replica.apply(task.index, task.command, task.wanted)
                # A question among the tasks may write what is unwritten, and still the loop must learn what changed.
                changed[task.group] = self._unwritten[task.group] = task.replica
                if task.wanted:
                    results.append((task.group, task.index, outcome))
                if task.replica.digests_asked:
                    views += self._views(task)
                self._after_entry()
            else:
                if task.group is None:
                    self.write()
                answers.append((task.answered, task.call()))
        statuses = {group: replica.status() for group, replica in changed.items()}
        self._publish(Published(results, statuses, answers, size, views))
        applied = time.perf_counter()
        self.steps += 1
        self._entries += entries
        self._bytes += size
        if self._is_much(changed.values()):
            self.write()
            self._on_applied(entries, applied - began, time.perf_counter() - applied)
        else:
            self._on_applied(entries, applied - began, 0.0)

    def rest(self) -> None:
        """Nothing has come for a moment: write what is left."""
        self.write()

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
        return [DigestView(task.group, task.index, n, replica.store, self._stores.snapshot()) for n in numbers]

    def write(self) -> None:
        """Write every change of the entries applied so far, with their applied indices, in one batch."""
        changes = [change for replica in self._unwritten.values() for change in replica.drain()]
        self._unwritten.clear()
        self._entries = self._bytes = 0
        if changes:
            self._stores.write(changes)
