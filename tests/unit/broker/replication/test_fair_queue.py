"""Callers have turns; what one asks for stays in its order; what comes behind all comes behind all."""

from __future__ import annotations

import random

import pytest

from sandq.broker.replication.fair_queue import BEHIND_ALL, FairQueue
from tests.support.examples import seeds


def queue_of(*asked: tuple[str, object]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for item, of in asked:
        queue.add(item, of)
    return queue


def taken(queue: FairQueue[str]) -> list[str]:
    found = []
    while queue:
        first = queue.first()
        assert queue.take() == first
        found.append(first)
    return found


def test_who_has_much_waiting_keeps_others_for_one_item_each() -> None:
    queue = queue_of(*[(f"a{number}", "a") for number in range(5)], ("b0", "b"), ("b1", "b"), ("n", None))
    assert taken(queue) == ["a0", "b0", "n", "a1", "b1", "a2", "a3", "a4"]


def test_who_comes_meanwhile_is_behind_those_who_wait() -> None:
    queue = queue_of(("a0", "a"), ("a1", "a"), ("b0", "b"))
    assert queue.take() == "a0"
    queue.add("c0", "c")
    assert taken(queue) == ["b0", "a1", "c0"]


def test_behind_all_is_behind_what_anybody_had_waiting_and_no_more() -> None:
    queue = queue_of(("a0", "a"), ("a1", "a"), ("end", BEHIND_ALL), ("b0", "b"), ("a2", "a"))
    assert taken(queue) == ["a0", "b0", "a1", "end", "a2"]
    queue = queue_of(("end", BEHIND_ALL), ("later", BEHIND_ALL))
    queue.add("a0", "a")
    assert taken(queue) == ["end", "later", "a0"]


def test_the_first_are_taken_in_the_order_of_their_coming() -> None:
    queue = queue_of(("a0", "a"), ("a1", "a"), ("b0", "b"), ("end", BEHIND_ALL), ("a2", "a"))
    assert queue.take() == "a0"
    assert queue.take_first(4) == ["a1", "b0", "end"]
    assert (len(queue), queue.added) == (1, 5)
    assert queue.take_all() == ["a2"] and not queue
    with pytest.raises(IndexError):
        queue.take()
    with pytest.raises(IndexError):
        queue.first()


@pytest.mark.parametrize("seed", seeds(10, 300))
def test_promises_in_any_order(seed: int) -> None:
    """Of one in its order, nothing lost or doubled, behind all behind all, and nobody twice while another waits."""
    rng = random.Random(seed)
    queue: FairQueue[tuple[object, int]] = FairQueue()
    waiting: list[tuple[object, int]] = []
    since: dict[object, list[object]] = {}
    """Of each who waits, whose items were taken since its turn was last."""
    for number in range(300):
        if rng.random() < 0.55:
            of = rng.choice(["a", "a", "a", "b", "c", None, BEHIND_ALL])
            queue.add((of, number), of)
            waiting.append((of, number))
            if of is not BEHIND_ALL:
                since.setdefault(of, [])
        elif waiting:
            of, at = item = queue.take()
            mine = [one for one in waiting if one[0] is of or one[0] == of]
            assert item == mine[0], f"seed {seed}"
            before = [one for one in waiting if one[1] < at]
            assert of is not BEHIND_ALL or not before, f"seed {seed}"
            assert of is BEHIND_ALL or not any(one[0] is BEHIND_ALL for one in before if not _older(waiting, one)), seed
            waiting.remove(item)
            since.pop(of, None)
            for turns in since.values():
                turns.append(of)
                others = [one for one in turns if one is not BEHIND_ALL]
                assert len(others) == len(set(others)), f"seed {seed}: one had two turns while another waited"
            if any(one[0] == of for one in waiting) and of is not BEHIND_ALL:
                since[of] = []
    rest = [queue.take() for _ in range(len(queue))]
    assert sorted(number for _, number in rest) == sorted(number for _, number in waiting)


def _older(waiting: list[tuple[object, int]], behind: tuple[object, int]) -> bool:
    """Whether something that it comes behind waits still."""
    return any(number < behind[1] and of is not BEHIND_ALL for of, number in waiting)
