"""Tests of moves and nacks that need several entries: the rest is submitted again until all items are done."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from sandq.broker.replication.in_parts import LEAST_ITEMS, submit_in_parts
from sandq.model.errors import NotLeader, SandqError
from sandq.partition import commands as c
from sandq.partition.leasing.settlement import Part
from sandq.partition.records.claim import Outcome
from sandq.partition.shared_state import NOT_YET

TARGETS = [(0, bytes([at]) * 16) for at in range(5)]
MOVE = c.Move([(target, 5, False) for target in TARGETS])
NACK = c.Nack([(at, None, None, None) for at in range(5)])


class OneAfterTheOther:
    """A group whose entries process `at_once` items each."""

    def __init__(self, at_once: int, fails_at: int | None = None) -> None:
        self._at_once = at_once
        self._fails_at = fails_at
        self.submitted: list[tuple[list[Any], dict[str, Any]]] = []
        self._waiting: list[Callable[[], None]] = []

    def submit(self, command: Any, done: Callable[[Any], None], **how: Any) -> None:
        if len(self.submitted) == self._fails_at:
            raise NotLeader("elsewhere")
        self.submitted.append((list(command.items), how))
        not_yet: Any = Outcome(NOT_YET) if isinstance(command, c.Move) else NOT_YET
        outcomes = [self._outcome(item) if at < self._at_once else not_yet for at, item in enumerate(command.items)]
        self._waiting.append(lambda: done(outcomes))

    @staticmethod
    def _outcome(item: Any) -> Any:
        return ["moved", item[0][1]] if isinstance(item[0], tuple) else None if item[0] else [[b"lost", 1]]

    def run(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


def outcome(host: OneAfterTheOther, command: c.Move | c.Nack) -> Any:
    results: list[Any] = []
    submit_in_parts(host, command, results.append, size=1000, work=5000, line="line")
    host.run()
    assert len(results) == 1
    return results[0]


def test_items_that_are_not_done_are_submitted_again_in_their_order() -> None:
    host = OneAfterTheOther(at_once=2)
    assert outcome(host, MOVE) == [["moved", name] for _, name in TARGETS]
    assert [items for items, _ in host.submitted] == [MOVE.items, MOVE.items[2:], MOVE.items[4:]]
    assert [how for _, how in host.submitted] == [
        {"size": 1000, "work": 5000, "messages": 5, "line": "line"},
        {"size": 600, "work": 3000, "messages": 3, "line": "line"},
        {"size": 200, "work": 1000, "messages": 1, "line": "line"},
    ]


def test_finished_command_is_freed_without_a_garbage_collection() -> None:
    class Results(list[Any]):
        """Has weak references, unlike a list."""

    results, host = Results(), OneAfterTheOther(at_once=2)
    freed = weakref.ref(results)
    gc.disable()
    try:
        submit_in_parts(host, NACK, results.append, size=1000, work=5000, line="line")  # type: ignore[arg-type]
        host.run()
        assert len(results[0]) == 5
        del results
        assert freed() is None, "a reference cycle holds the items of the command"
    finally:
        gc.enable()


def test_messages_that_a_nack_lost_are_reported_with_the_rest() -> None:
    host = OneAfterTheOther(at_once=1)
    assert outcome(host, NACK) == [[[b"lost", 1]], None, None, None, None]
    assert len(host.submitted) == 5


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_many_items_are_looked_at_a_few_times_each(at_once: int) -> None:
    """An entry looks up all its items, also items beyond its budget."""
    host = OneAfterTheOther(at_once)
    many = c.Move([((0, at.to_bytes(16, "big")), 5, False) for at in range(1000)])
    assert outcome(host, many) == [["moved", name] for (_, name), *_ in many.items]
    assert sum(len(items) for items, _ in host.submitted) <= (1 + LEAST_ITEMS) * 1000
    assert len(host.submitted) <= 1000 / at_once + 10, "each entry must use its whole budget"
    done = [item for items, _ in host.submitted for item in items[:at_once]]
    assert done == many.items, "in their order"


@pytest.mark.parametrize("command", [MOVE, NACK, c.Move([])])
def test_command_done_at_once_is_submitted_once(command: c.Move | c.Nack) -> None:
    host = OneAfterTheOther(at_once=5)
    assert len(outcome(host, command)) == len(command.items)
    assert len(host.submitted) == 1 and host.submitted[0][0] == command.items


def test_an_error_ends_it() -> None:
    assert isinstance(outcome(OneAfterTheOther(2, fails_at=1), MOVE), NotLeader)
    with pytest.raises(NotLeader):
        outcome(OneAfterTheOther(2, fails_at=0), MOVE)


def test_an_error_of_the_command_is_passed_on() -> None:
    class Refusing(OneAfterTheOther):
        def submit(self, command: Any, done: Callable[[Any], None], **how: Any) -> None:
            done(SandqError("no"))

    assert isinstance(outcome(Refusing(2), NACK), SandqError)


class Slicing(OneAfterTheOther):
    """A group whose entries process one message of one item. The first message of an item is not in its lease. After
    `ends_after` entries all leases have ended."""

    def __init__(self, ends_after: int = 100) -> None:
        super().__init__(at_once=1)
        self._ends_after = ends_after

    def submit(self, command: Any, done: Callable[[Any], None], **how: Any) -> None:
        """Do the first message of a command at once, and report the rest as a part."""
        self.submitted.append((list(command.items), how))
        if len(self.submitted) > self._ends_after:
            done([[] for _ in command.items])
            return
        (_, what, *_), *others = command.items
        is_first = what is None
        whole = [[b"b", 1], [b"c", 1], [b"d", 1]] if is_first else what
        lost = [[b"a", 1]] if is_first else None
        done([Part(whole[1:], lost) if len(whole) > 1 else lost, *[NOT_YET] * len(others)])


def test_rest_of_partly_done_item_is_submitted_again() -> None:
    host = Slicing()
    assert outcome(host, c.Nack([(at, None, 5, "no", True, None, 0) for at in range(2)])) == [[[b"a", 1]]] * 2
    left = [[(token, what) for token, what, *_ in items] for items, _ in host.submitted]
    bc, d = [[b"c", 1], [b"d", 1]], [[b"d", 1]]
    assert left == [[(0, None), (1, None)], [(0, bc), (1, None)], [(0, d), (1, None)], [(1, None)], [(1, bc)], [(1, d)]]
    assert all(item[2:] == (5, "no", True, None, 0) for items, _ in host.submitted for item in items)


def test_lease_that_ends_between_parts_loses_the_rest() -> None:
    results = outcome(Slicing(ends_after=1), c.Nack([(at, None, 5, "no") for at in range(2)]))
    assert results == [[[b"a", 1], [b"c", 1], [b"d", 1]], []]
