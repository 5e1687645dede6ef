"""The applier reports the results of entries at once and writes the rows of many small runs together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.replication import applier
from sandq.broker.replication.applier import (
    DEPTH,
    HERE_BYTES,
    HERE_ENTRIES,
    PREEMPTED_MOST,
    SHARE,
    SLICE_S,
    WRITE_BYTES,
    WRITE_ENTRIES,
    WRITE_ROW_BYTES,
    WRITE_ROWS,
    Applier,
    Apply,
    Ask,
    Published,
)
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.shut import ApplyFailure, LogGap, Step
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import NotFound
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.view import Change
from sandq.raft import Skip
from sandq.storage.stores import MemoryStores

T = 1_800_000_000_000


class Counter:
    """A replica that writes one row per byte of an entry."""

    def __init__(self, number: int) -> None:
        self.store = number
        self.digests_asked: list[int] = []
        self.applied_index = self.rows_index = 0
        self.failure: ApplyFailure | None = None
        self.careful_until = 0
        self._rows: dict[bytes, bytes] = {}
        self.midway: Callable[[], None] = tuple
        """Hook that is called in the middle of an entry."""

    def shut(self, step: Step, error: BaseException, *, index: int | None = None) -> None:
        rows_index = self.rows_index
        self.failure = ApplyFailure.of(error, group=self.store, step=step, index=index, rows_index=rows_index)

    def apply(self, index: int, command: bytes, wanted: bool, skip: Skip | None = None) -> list[Any]:
        self.midway()
        self.applied_index = index
        self._rows.update({b"%d %d %d" % (self.store, index, at): command[:1] for at in range(len(command))})
        return [index]

    def needs_no_disk(self, command: bytes) -> bool:
        return b"disk" not in command

    @property
    def unwritten(self) -> int:
        return len(self._rows)

    @property
    def unwritten_bytes(self) -> int:
        return sum([len(row) for row in self._rows.values()])

    def drain(self) -> list[Change]:
        rows, self._rows = self._rows, {}
        self.rows_index = self.applied_index
        return [*rows.items(), (b"%d applied" % self.store, b"%d" % self.applied_index)]

    def status(self) -> int:
        return self.applied_index


class Bed:
    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.sent: list[Published] = []
        self.applier = Applier(self.stores, self.sent.append)
        self.replicas = [Counter(0), Counter(1)]

    def entry(self, group: int = 0, size: int = 1) -> Apply:
        replica = self.replicas[group]
        return Apply(group, replica, replica.applied_index + 1, b"x" * size, True)

    def written(self, group: int = 0) -> int:
        return int(self.stores.get(b"%d applied" % group) or 0)


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_entry_result_is_reported_before_anything_is_written(bed: Bed) -> None:
    bed.applier.run([bed.entry()])
    assert [(sent.results, sent.statuses) for sent in bed.sent] == [([(0, 1, [1])], {0: 1})]
    assert bed.written() == 0
    bed.applier.rest()
    assert bed.written() == 1


def test_many_entries_are_written_at_once(bed: Bed) -> None:
    for _ in range(WRITE_ENTRIES):
        assert bed.written() == 0
        bed.applier.run([bed.entry()])
    assert bed.written() == WRITE_ENTRIES
    bed.applier.run([bed.entry()])
    assert bed.written() == WRITE_ENTRIES, "it counts anew"


def test_rows_are_written_when_many_or_large(bed: Bed) -> None:
    bed.applier.run([Apply(0, bed.replicas[0], 1, b"x" * (WRITE_ROWS - 1), True)])
    assert bed.written() == 0
    bed.applier.run([Apply(0, bed.replicas[0], 2, b"x", True)])
    assert bed.written() == 2
    bed.replicas[1].apply = lambda index, command, wanted, skip=None: []  # type: ignore[method-assign]
    bed.applier.run([Apply(1, bed.replicas[1], 1, b"x" * WRITE_BYTES, True)])
    assert bed.stores.get(b"1 applied") is not None


def test_rows_of_moved_large_messages_are_written(bed: Bed) -> None:
    value, count = bytes(1 << 18), 8
    replica = PartitionReplica(bed.stores, 1, 0, 0, parse_settings({}).record())

    def apply(index: int, command: c.Command) -> None:
        entry = c.Entry(T, [command]).encode()
        bed.applier.run([Apply(0, replica, index, entry, True)])

    apply(1, c.Append(encode({Column.VALUE: [value] * count})))
    assert replica.unwritten_bytes == 0
    for at in range(count):
        message_id = offsets.pack(T, 1, at, 0)
        apply(2 + at, c.Move([((c.TARGET_ID, message_id), T + 60_000, False)]))
        assert bed.sent[-1].results[0][2][0][0][0] == "moved"
        assert replica.unwritten_bytes < WRITE_ROW_BYTES
    assert replica.unwritten < WRITE_ROWS


def test_request_without_group_sees_all_rows_written(bed: Bed) -> None:
    found: list[int] = []
    bed.applier.run([bed.entry(0), bed.entry(1)])
    bed.applier.run([Ask(lambda: bed.written(), found.append, 0)])
    assert [answered(value) for answered, value in bed.sent[-1].answers] == [None] and found == [0]
    bed.applier.run([Ask(lambda: bed.written(0) + bed.written(1), found.append)])
    assert [answered(value) for answered, value in bed.sent[-1].answers] == [None] and found == [0, 2]


def test_long_entry_yields(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier results are reported, except those of the same group. Work of other groups is done and reported."""
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    long, other = bed.replicas
    bed.applier.run([bed.entry(0)])
    assert bed.sent.pop().statuses == {0: 1}

    def yield_now() -> None:
        bed.applier.other_tasks = lambda: [Apply(1, other, 2, b"x" * WRITE_ROWS, True)]
        bed.applier.yield_now()
        assert [(sent.results, sent.statuses) for sent in bed.sent] == [
            ([(1, 1, [1])], {1: 1}),
            ([(1, 2, [2])], {1: 2}),
        ]
        assert (bed.written(0), bed.written(1)) == (0, 2), "no row of a half-applied entry is written"
        long.midway = tuple

    first = Apply(0, long, 2, b"x", True)
    long.midway = lambda: setattr(long, "midway", yield_now)
    bed.applier.run([first, bed.entry(1), Apply(0, long, 3, b"x", True)])
    assert [(sent.results, sent.statuses) for sent in bed.sent[2:]] == [([(0, 2, [2]), (0, 3, [3])], {0: 3})]
    assert sum(sent.applied_bytes for sent in bed.sent) == 3 + WRITE_ROWS
    bed.applier.rest()
    assert (bed.written(0), bed.written(1)) == (3, 2)


def test_short_entry_does_not_yield(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 1e9)
    bed.replicas[0].midway = bed.applier.yield_now
    bed.applier.other_tasks = lambda: pytest.fail("nobody is asked")
    bed.applier.run([bed.entry(0)])
    assert len(bed.sent) == 1


def test_entries_yield_up_to_a_maximum_depth(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    bed.replicas = [Counter(number) for number in range(DEPTH + 2)]
    for replica in bed.replicas:
        replica.midway = bed.applier.yield_now
    waiting = [bed.entry(number) for number in range(1, DEPTH + 2)]
    deepest = []

    def other_tasks() -> list[Apply]:
        deepest.append(len(waiting))
        return [waiting.pop(0)]

    bed.applier.other_tasks = other_tasks
    bed.applier.run([bed.entry(0)])
    assert len(deepest) == DEPTH and len(waiting) == 1
    sent = [number for published in bed.sent for number in published.statuses]
    assert sent == [*range(DEPTH, -1, -1)], "the last task must finish first"


def test_query_of_a_group_yields_and_query_without_group_does_not(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without a group runs after all other tasks, because no change may happen during it."""
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    asked: list[int] = []

    def other_tasks() -> list[Apply]:
        asked.append(0)
        return []

    bed.applier.other_tasks = other_tasks
    bed.applier.run([Ask(bed.applier.yield_now, asked.append, 0)])
    assert len(asked) == 1
    bed.applier.run([Ask(bed.applier.yield_now, asked.append)])
    assert len(asked) == 1


def test_query_that_yielded_is_answered(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    answers: list[list[Any]] = []
    asked = Applier(bed.stores, lambda sent: answers.append([value for _, value in sent.answers]))
    asked.other_tasks = lambda: [Apply(1, bed.replicas[1], 1, b"x", True)]
    asked.run([Ask(lambda: "first", answers.append, 0), Ask(asked.yield_now, answers.append, 0)])
    assert answers == [["first"], [], [None]]


def test_queries_yield_up_to_a_maximum_number(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is charged to the memory budget when it is complete."""
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    deepest = 0

    def other_tasks() -> list[Ask]:
        nonlocal deepest
        deepest += 1
        assert deepest <= PREEMPTED_MOST
        return [Ask(bed.applier.yield_now, lambda value: None, deepest)]

    bed.applier.other_tasks = other_tasks
    for _ in range(2):
        deepest = 0
        bed.applier.run([Ask(bed.applier.yield_now, lambda value: None, 0)])
        assert deepest == PREEMPTED_MOST


def test_bytes_of_unfinished_entries_are_limited(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    monkeypatch.setattr(applier, "UNFINISHED_BYTES", 10)
    bed.replicas = [Counter(number) for number in range(5)]
    for replica in bed.replicas:
        replica.midway = bed.applier.yield_now
    waiting = [bed.entry(number, 4) for number in range(1, 5)]
    bed.applier.other_tasks = lambda: [waiting.pop(0)]
    bed.applier.run([bed.entry(0, 4)])
    assert [number for published in bed.sent for number in published.statuses] == [2, 1, 0]
    bed.applier.run([bed.entry(0, 4)])
    assert not waiting, "finished tasks must not count any more"


def test_replies_follow_the_results_that_they_depend_on(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query between two entries is answered together with the result of the first entry."""
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    long, other = bed.replicas
    bed.applier.other_tasks = lambda: [Apply(1, other, 2, b"x", True)]
    asked = [Ask(lambda at=at: at, lambda value: None, group) for at, group in enumerate([0, None, 1])]

    def tasks() -> Iterator[Apply | Ask]:
        yield bed.entry(0)
        yield bed.entry(1)
        yield from asked
        long.midway = bed.applier.yield_now
        yield bed.entry(0)

    bed.applier.run(tasks())
    assert [(sent.results, [value for _, value in sent.answers]) for sent in bed.sent] == [
        ([(1, 1, [1])], [2]),
        ([(1, 2, [2])], []),
        ([(0, 1, [1]), (0, 2, [2])], [0, 1]),
    ]


def test_long_entries_do_not_delay_the_end_of_another_entry(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer other entries ran, the longer an entry runs before it yields again."""
    now_s = 0.0
    monkeypatch.setattr(applier, "time", SimpleNamespace(perf_counter=lambda: now_s))
    work_s = 200 * SLICE_S
    nested = 0

    def work() -> None:
        nonlocal now_s
        for _ in range(200):
            now_s += SLICE_S
            bed.applier.yield_now()

    for replica in bed.replicas:
        replica.midway = work

    def other_tasks() -> Iterator[Apply]:
        nonlocal nested
        nested += 1
        bed.applier.other_tasks = tuple
        yield bed.entry(1)
        bed.applier.other_tasks = other_tasks

    bed.applier.other_tasks = other_tasks
    bed.applier.run([bed.entry(0)])
    assert nested <= SHARE + 1
    assert now_s <= (SHARE + 2) * work_s + 1e-9


def test_replica_says_that_an_entry_of_it_is_half_done() -> None:
    said: list[bool] = []
    settings = parse_settings({}).record()
    replica = PartitionReplica(MemoryStores(), 1, 1, 0, settings, yield_now=lambda: said.append(replica.is_mid_entry))
    batch = encode({Column.VALUE: [b"a"], Column.UNIQUE_KEY: [b"u"]})
    replica.apply(1, c.Entry(T, [c.Append(batch, split=True)]).encode(), True)
    assert said and all(said) and not replica.is_mid_entry


def test_an_entry_that_fails_inside_another_shuts_its_own_replica_only(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    long, other = bed.replicas

    def fail() -> None:
        raise NotFound("a fault of the state machine")

    long.midway, other.midway = bed.applier.yield_now, fail
    bed.applier.other_tasks = lambda: [bed.entry(1)]
    bed.applier.run([bed.entry(0)])
    assert long.failure is None and other.failure is not None
    assert (other.failure.index, other.failure.error) == (1, "NotFound: a fault of the state machine")
    assert [sent.results for sent in bed.sent if sent.results] == [[(0, 1, [1])]]
    assert [group for sent in bed.sent for group, _ in sent.shut] == [1]


def test_run_here_reports_results_and_leaves_rows_to_the_thread(bed: Bed) -> None:
    for _ in range(WRITE_ENTRIES):
        assert bed.applier.run_here([bed.entry()])
    assert bed.sent[-1].results == [(0, WRITE_ENTRIES, [WRITE_ENTRIES])] and not bed.written()
    assert not bed.applier.run_here([bed.entry()])
    bed.applier.run([bed.entry()])
    assert bed.written() == WRITE_ENTRIES + 1
    assert bed.applier.run_here([bed.entry()])
    bed.applier.rest()
    assert bed.written() == WRITE_ENTRIES + 2


@pytest.mark.parametrize("rows", [WRITE_ROWS, WRITE_BYTES])
def test_run_here_stops_if_much_must_be_written(bed: Bed, rows: int) -> None:
    for _ in range(rows // 500 + 1):
        if not bed.applier.run_here([bed.entry(size=500)]):
            break
    else:
        pytest.fail("it went on")
    assert bed.sent and not bed.written()


def test_run_here_leaves_long_disk_and_ask_items_to_the_thread(bed: Bed) -> None:
    replica = bed.replicas[0]

    def entries(*commands: bytes) -> list[Apply]:
        return [Apply(0, replica, replica.applied_index + 1 + at, one, True) for at, one in enumerate(commands)]

    half = HERE_BYTES // 2
    assert bed.applier.run_here(entries(*[b"x"] * (HERE_ENTRIES + 1))) == HERE_ENTRIES
    bed.applier.rest()
    assert bed.applier.run_here(entries(b"x" * half, b"x" * half, b"x")) == 2
    bed.applier.rest()
    assert bed.applier.run_here(entries(b"x", b"x", b"disk", b"x")) == 2
    assert bed.applier.run_here([*entries(b"x"), Ask(list, print, 0)]) == 1
    assert bed.applier.run_here(entries(b"disk")) == 0
    assert replica.applied_index == HERE_ENTRIES + 5


def test_entry_run_on_the_loop_does_not_yield(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "SLICE_S", 0.0)
    bed.applier.other_tasks = lambda: pytest.fail("it gave way")
    bed.replicas[0].midway = bed.applier.yield_now
    assert bed.applier.run_here([bed.entry()])


def test_an_entry_that_one_is_missing_before_ends_the_thread() -> None:
    """The next entry would be treated as applied already, and would be lost."""
    replica = PartitionReplica(MemoryStores(), 0, 7, 0, parse_settings({}).record())
    entry = c.Entry(T, (c.Append(encode({Column.VALUE: [b"a"]})),)).encode()
    replica.apply(2, entry, True)
    with pytest.raises(LogGap, match="entry 4 of raft group 7 follows entry 2"):
        replica.apply(4, entry, True)
    assert replica.apply(2, b"", True) == [] and replica.applied_index == 2
