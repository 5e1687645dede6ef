"""Groups have turns on the apply thread: a busy group delays another group by at most one entry."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence

import pytest

from sandq.broker.replication.lanes import Lanes
from sandq.broker.replication.worker import REST_S, SLICE_ITEMS, FairWorker
from tests.support.waiting import PATIENCE_S


def one() -> bool:
    return False


def on() -> bool:
    return True


def all_of(lanes: Lanes[str]) -> str:
    return "".join(lanes.slice(on))


def test_groups_run_round_robin() -> None:
    lanes: Lanes[str] = Lanes()
    for item in "aaaa":
        lanes.add(item, 1)
    lanes.add("b", 2)
    lanes.add("c", 3)
    assert [*lanes.slice(one)] == ["a"]
    lanes.add("b", 2)
    assert all_of(lanes) == "bcaba" + "a"


def test_item_without_group_runs_after_all_earlier_items() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("!", None)
    assert all_of(lanes) == "!"
    lanes.add("a", 1)
    lanes.add("b", 2)
    lanes.add("a", 1)
    lanes.add("!", None)
    lanes.add("?", None)
    lanes.add("c", 3)
    lanes.add("b", 2)
    order = all_of(lanes)
    assert order.index("!") > max(order.index("a", 2), order.index("b")) and order.index("?") == order.index("!") + 1
    assert len(lanes) == 0


def test_other_items_run_while_an_item_yields() -> None:
    lanes: Lanes[str] = Lanes()
    for item, lane in [("a", 1), ("b", 2), ("A", 1), ("B", 2), ("!", None), ("c", 3)]:
        lanes.add(item, lane)
    done = []
    for item in lanes.slice(on):
        if item == "a":
            for other in lanes.others(on):
                if other == "b":
                    lanes.add("C", 3)
                    done += [each.upper() + "'" for each in lanes.others(one)]
                    done += [each + "'" for each in lanes.others(on)]
                done.append(other)
            assert len(lanes) == 3, "this item, the next item of its group, and the item without a group"
        done.append(item)
    assert done == ["c'", "C'", "b", "B", "a", "A", "!"]
    assert len(lanes) == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_order(seed: int) -> None:
    rng = random.Random(seed)
    lanes: Lanes[tuple[int, int | None]] = Lanes()
    added = 0
    done: list[tuple[int, int | None]] = []
    for _ in range(300):
        if rng.random() < 0.55 or not len(lanes):
            lane = rng.choice([None, 1, 1, 1, 2, 3])
            lanes.add((added, lane), lane)
            added += 1
        else:
            done += lanes.slice(one)
    done += lanes.slice(on)
    assert sorted(number for number, _ in done) == [*range(added)]
    for at, (number, lane) in enumerate(done):
        before = {each for each, _ in done[:at]}
        wanted = [each for each, of in done if each < number and (lane is None or of == lane)]
        assert before.issuperset(wanted)


def rest() -> None:
    """Do nothing, because nothing was postponed."""


def never(items: object) -> int:
    """Run nothing on the submitting thread."""
    return 0


def test_worker_checks_for_new_items_between_turns() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    done: list[str] = []
    batches: list[int] = []

    def handle(items: Iterable[str]) -> None:
        count = 0
        for item in items:
            count += 1
            done.append(item)
            if not began.is_set():
                began.set()
                assert may_end.wait(PATIENCE_S)
            if item == "end":
                ended.set()
        batches.append(count)

    crashes: list[BaseException] = []
    worker: FairWorker[str] = FairWorker(
        "t", handle, crashes.append, lambda item: {"a": 1, "b": 2}.get(item), rest, never
    )
    worker.submit("a")
    assert began.wait(PATIENCE_S)
    for _ in range(5 * SLICE_ITEMS):
        worker.submit("a")
    worker.submit("b")
    worker.submit("end")
    may_end.set()
    assert ended.wait(PATIENCE_S) and worker.close(PATIENCE_S) and not crashes
    assert done.index("b") <= 2 and done[-1] == "end" and len(done) == 5 * SLICE_ITEMS + 3
    assert max(batches) <= SLICE_ITEMS
    assert worker.progress is None


def test_worker_finishes_queued_items_and_a_crash_is_reported() -> None:
    done: list[int] = []
    crashes: list[BaseException] = []

    def handle(items: Iterable[int]) -> None:
        for item in items:
            if item < 0:
                raise KeyError(item)
            done.append(item)

    worker: FairWorker[int] = FairWorker("t", handle, crashes.append, lambda item: item % 7, rest, never)
    for item in range(1000):
        worker.submit(item)
    assert worker.close(PATIENCE_S)
    assert sorted(done) == [*range(1000)] and not crashes
    worker = FairWorker("t", handle, crashes.append, lambda item: None, rest, never)
    worker.submit(-1)
    assert worker.close(PATIENCE_S)
    assert [type(crash) for crash in crashes] == [KeyError]


def test_idle_worker_does_deferred_work() -> None:
    done: list[str] = []
    put_off, rested = threading.Event(), threading.Semaphore(0)
    crashes: list[BaseException] = []

    def handle(items: Iterable[str]) -> None:
        done.extend(items)
        put_off.set()

    def rest() -> None:
        done.append("rest")
        rested.release()
        if done.count("rest") == 3:
            raise KeyError("the disk")

    worker: FairWorker[str] = FairWorker("t", handle, crashes.append, lambda item: None, rest, never)
    for item in "ab":
        worker.submit(item)
        assert rested.acquire(timeout=PATIENCE_S)
        assert put_off.is_set()
    # One rest is enough, however long no item comes.
    assert not rested.acquire(timeout=3 * REST_S)
    assert done == ["a", "rest", "b", "rest"]
    worker.submit("c")
    assert rested.acquire(timeout=PATIENCE_S) and worker.close(PATIENCE_S)
    assert [type(crash) for crash in crashes] == [KeyError]


class Here:
    """A worker and its submitter, which record where each item runs."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.handled, self.rested = threading.Semaphore(0), threading.Semaphore(0)
        self.may_run = threading.Event()
        self.may_run.set()
        self.crashes: list[BaseException] = []
        self.worker: FairWorker[str] = FairWorker(
            "t", self._handle, self.crashes.append, lambda item: None, self._rest, self._handle_here
        )

    def _handle(self, items: Iterable[str]) -> None:
        for item in items:
            assert self.may_run.wait(PATIENCE_S)
            self.done.append(f"{item} there")
        self.handled.release()

    def _handle_here(self, items: Sequence[str]) -> int:
        if "crash" in items:
            raise KeyError("crash")
        count = items.index("no") if "no" in items else len(items)
        self.done += [f"{item} here" for item in items[:count]]
        return count

    def _rest(self) -> None:
        self.done.append("rest")
        self.rested.release()

    def submit(self, item: str) -> None:
        self.worker.submit(item)
        assert self.handled.acquire(timeout=PATIENCE_S)

    def run_here(self, item: str) -> None:
        """Wait until the thread is idle. A slow thread may rest in between."""
        self.submit("first")
        while not self.worker.run_here([item]):
            self.submit("again")


def test_inline_run_happens_only_between_two_turns_of_the_thread() -> None:
    here = Here()
    assert not here.worker.run_here(["a"])
    here.submit("b")
    assert here.rested.acquire(timeout=PATIENCE_S)
    while "rest" in here.done and here.worker.run_here(["c"]):
        pytest.fail("the thread rests")
    here.run_here("d")
    while here.done[-1] != "rest":  # the thread may have rested earlier too
        assert here.rested.acquire(timeout=PATIENCE_S)
    assert here.done[:2] == ["b there", "rest"] and "a here" not in here.done and "c here" not in here.done
    assert here.done[-2:] == ["d here", "rest"]
    assert here.worker.close(PATIENCE_S) and not here.crashes


def test_run_here_refuses_while_the_thread_has_work() -> None:
    here = Here()
    here.submit("a")
    here.may_run.clear()
    here.worker.submit("b")
    assert not here.worker.run_here(["c"])
    here.may_run.set()
    assert here.handled.acquire(timeout=PATIENCE_S)
    assert here.worker.close(PATIENCE_S) and not here.crashes
    assert [item for item in here.done if item != "rest"] == ["a there", "b there"]


def test_item_that_cannot_run_here_runs_on_the_thread() -> None:
    here = Here()
    here.submit("a")
    assert not here.worker.run_here(["no"])
    here.submit("no")
    assert here.worker.close(PATIENCE_S) and not here.crashes
    assert [item for item in here.done if item != "rest"] == ["a there", "no there"]


def test_a_crash_here_is_one_of_the_thread() -> None:
    here = Here()
    here.run_here("a")
    while not here.crashes:
        if not here.worker.run_here(["crash"]):
            here.submit("again")
    done = list(here.done)
    here.worker.submit("late")
    assert not here.worker.run_here(["later"])
    assert here.worker.close(PATIENCE_S)
    assert here.done == done and [type(crash) for crash in here.crashes] == [KeyError]
    assert here.worker.progress is None
