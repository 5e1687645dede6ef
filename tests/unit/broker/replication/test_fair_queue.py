"""Tests of the fair queue: queues get turns by cost and keep their order.

An item without a queue runs after all earlier items.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from sandq.broker.broker import SETTLED_WORK, _size_of
from sandq.broker.leader.partition_leader import lease_work
from sandq.broker.replication.fair_queue import BEHIND, FairQueue
from sandq.partition.commands import Ack, Grant
from tests.support.examples import seeds


class Item(NamedTuple):
    number: int
    line: str | None
    work: int


def queue_of(*items: tuple[str, int, str | None]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for name, work, line in items:
        queue.add(name, work, line)
    return queue


def taken(queue: FairQueue[str]) -> list[str]:
    found = []
    while queue:
        first = queue.first()
        assert queue.take() == first
        found.append(first)
    return found


def test_long_queue_alternates_with_short_queue() -> None:
    queue = queue_of(*[(f"a{number}", 10, "a") for number in range(5)], ("b0", 10, "b"), ("b1", 10, "b"))
    assert taken(queue) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_small_entries_precede_large_ones() -> None:
    queue = queue_of(*[(f"a{number}", 1000, "a") for number in range(3)], ("b0", 10, "b"), ("b1", 10, "b"))
    assert queue.take() == "b0"
    assert taken(queue) == ["b1", "a0", "a1", "a2"]


def test_idle_queue_saves_up_no_share() -> None:
    queue = queue_of(*[(f"a{number}", 10, "a") for number in range(8)])
    assert [queue.take() for _ in range(4)] == ["a0", "a1", "a2", "a3"]
    for number in range(4):
        queue.add(f"b{number}", 10, "b")
    assert taken(queue) == ["a4", "b0", "a5", "b1", "a6", "b2", "a7", "b3"]


def test_item_without_queue_runs_after_all_earlier_and_before_all_later_items() -> None:
    queue = queue_of(("a0", 900, "a"), ("a1", 900, "a"), ("end", 1, None), ("then", 1, None), ("b0", 1, "b"))
    queue.add("a2", 900, "a")
    assert taken(queue) == ["a0", "a1", "end", "then", "b0", "a2"]
    assert taken(queue_of(("end", 1, None), ("a0", 1, "a"), ("then", 1, None))) == ["end", "a0", "then"]


def test_items_behind_all_do_not_delay_later_items() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.add(f"a{number}", 900, "a")
    queue.add("expire", 1, BEHIND)
    queue.add("upkeep", 1, BEHIND)
    queue.add("b0", 1, "b")
    queue.add("a3", 900, "a")
    assert taken(queue) == ["b0", "a0", "a1", "a2", "expire", "upkeep", "a3"]


def test_take_first_returns_items_in_arrival_order() -> None:
    queue = queue_of(("a0", 10, "a"), ("a1", 10, "a"), ("b0", 10, "b"), ("end", 1, None), ("a2", 10, "a"))
    assert queue.take() == "a0"
    assert queue.take_first(4) == ["a1", "b0", "end"]
    assert (len(queue), queue.added) == (1, 5)
    assert queue.take_all() == ["a2"] and not queue
    assert not queue.take_first(5)
    with pytest.raises(IndexError):
        queue.take()
    with pytest.raises(IndexError):
        queue.first()


@pytest.mark.parametrize("seed", seeds(10, 300))
def test_order_and_nothing_lost(seed: int) -> None:
    """Compare the queue with a list of all waiting items in arrival order."""
    rng = random.Random(seed)
    queue: FairQueue[Item] = FairQueue()
    waiting: list[Item] = []
    for number in range(1, 400):
        chance = rng.random()
        if chance < 0.5:
            item = Item(number, rng.choice(["a", "a", "a", "b", "c", None, "behind"]), rng.choice([1, 5, 1000]))
            queue.add(item, item.work, BEHIND if item.line == "behind" else item.line)
            waiting.append(item)
        elif chance < 0.98 and waiting:
            item = queue.take()
            before = waiting[: waiting.index(item)]
            assert not before or item.line not in (None, "behind"), f"seed {seed}"
            assert not [one for one in before if one.line in (None, item.line)], f"seed {seed}"
            waiting.remove(item)
        else:
            count = rng.randrange(queue.added + 1)
            numbers = sorted(waiting)
            first = queue.take_first(count)
            assert first == numbers[: len(first)], f"seed {seed}"
            waiting = numbers[len(first) :]
        assert len(queue) == len(waiting)
    assert queue.take_all() == sorted(waiting)


@pytest.mark.parametrize("seed", seeds(10, 300))
def test_wait_is_bounded_by_the_own_work(seed: int) -> None:
    """The bound for each other queue: the work in the item's queue at its arrival, with the item itself, plus one
    item."""
    rng = random.Random(seed)
    queue: FairQueue[Item] = FairQueue()
    waiting: dict[Item, tuple[int, dict[str, int]]] = {}
    """The bound of each waiting item, and the work taken from other queues since its arrival."""
    largest = {"a": 1000, "b": 50, "c": 1}
    for number in range(400):
        if rng.random() < 0.1:
            queue.add(Item(number, None, 1), 1, BEHIND)  # keeps nobody
        elif rng.random() < 0.55:
            line = rng.choice(["a", "a", "b", "c"])
            item = Item(number, line, rng.randint(1, largest[line]))
            queue.add(item, item.work, line)
            own = item.work + sum([one.work for one in waiting if one.line == line])
            waiting[item] = own, dict.fromkeys(largest, 0)
        elif waiting:
            item = queue.take()
            if item.line is None:
                continue
            own, others = waiting.pop(item)
            for line, work in others.items():
                assert line == item.line or work <= own + largest[line], f"seed {seed}: {item} waited for {line}"
            for _, others in waiting.values():
                others[item.line or ""] += item.work


@pytest.mark.parametrize("items", [1, 10, 512, 1000])
def test_an_ack_comes_before_a_lease_of_as_much_that_came_after_it(items: int) -> None:
    """The ack may free what the lease needs: a key or a credit of the consumer."""
    queue = queue_of(
        ("ack", SETTLED_WORK * _size_of(Ack([(number, None) for number in range(items)])), "connection"),
        ("lease", lease_work([Grant("c", items, 1000)]), "group"),
    )
    assert taken(queue) == ["ack", "lease"]
