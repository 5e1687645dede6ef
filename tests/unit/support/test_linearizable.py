"""Tests of the checker of histories: it accepts linearizable histories, refuses others, and agrees with a full
search."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest

from tests.support.simulation.linearizable import (
    ABSENT,
    NotLinearizable,
    Operation,
    check,
    is_linearizable,
    shortest_window,
)

V = [b"%016d" % number for number in range(1000)]
"""Versions."""
LATE = 1 << 30


def get(invoked: int, answered: int, value: bytes | None, version: int | None = None) -> Operation:
    return Operation("get", invoked, answered, value, version=None if version is None else V[version])


def put(invoked: int, answered: int | None, value: bytes, version: int | None = None) -> Operation:
    return Operation("put", invoked, answered, value, version=None if version is None else V[version])


def delete(invoked: int, answered: int | None, version: int | None = None) -> Operation:
    return Operation("delete", invoked, answered, version=None if version is None else V[version])


def cas(
    invoked: int, answered: int | None, value: bytes | None, expected: int | None, version: int | None = None
) -> Operation:
    on = ABSENT if expected is None else V[expected]
    return Operation("cas", invoked, answered, value, on, None if version is None else V[version])


def changed(invoked: int, answered: int, value: bytes, expected: int | None, present: int | None) -> Operation:
    operation = cas(invoked, answered, value, expected, present)
    operation.refused = True
    return operation


GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "one after the other": [
        get(1, 2, None),
        put(3, 4, b"a", 1),
        get(5, 6, b"a", 1),
        cas(7, 8, b"b", 1, 2),
        delete(9, 10, 3),
        get(11, 12, None),
    ],
    "a write is seen before its answer": [put(1, 8, b"a", 1), get(2, 3, None), get(4, 5, b"a", 1)],
    "reads at once see the old and the new": [
        put(1, 2, b"a", 1),
        put(3, 9, b"b", 2),
        get(4, 8, b"b", 2),
        get(5, 7, b"a", 1),
    ],
    "unknown and never done": [put(1, None, b"a"), get(2, 3, None), put(4, 5, b"b", 1), get(6, 7, b"b", 1)],
    "unknown and done late": [put(1, None, b"a"), put(2, 3, b"b", 1), get(4, 5, b"b", 1), get(6, 7, b"a", 2)],
    "an unknown deletion": [put(1, 2, b"a", 1), delete(3, None), get(4, 5, b"a", 1), get(6, 7, None)],
    "one of two that expect the same": [put(1, 2, b"a", 1), cas(3, 8, b"b", 1, 2), changed(4, 7, b"c", 1, 2)],
    "refused for the version of a write that nobody read": [
        put(1, None, b"a"),
        changed(2, 3, b"b", None, 5),
        cas(4, 5, b"c", 5, 6),
        get(6, 7, b"c", 6),
    ],
    "a version learned later": [put(1, None, b"a"), changed(2, 3, b"b", None, 5), get(4, 5, b"a", 5)],
    "unknown cas and deletion in turn": [
        put(1, 2, b"a", 1),
        delete(3, None),
        cas(4, None, b"b", None),
        get(5, 6, b"b", 4),
        changed(7, 8, b"c", 1, 4),
    ],
    "refused while there is nothing": [changed(1, 2, b"a", 7, None), cas(3, 4, b"a", None, 8)],
}

BAD: dict[str, list[Operation]] = {
    "a stale read": [put(1, 2, b"a", 1), put(3, 4, b"b", 2), get(5, 6, b"a", 1)],
    "an acknowledged write is lost": [put(1, 2, b"a", 1), get(3, 4, None)],
    "a lost write comes out by a cas": [put(1, 2, b"a", 1), cas(3, 4, b"b", None, 2)],
    "two winners of one cas": [put(1, 2, b"a", 1), cas(3, 8, b"b", 1, 2), cas(4, 7, b"c", 1, 3)],
    "two winners on absence": [cas(1, 8, b"b", None, 2), cas(2, 7, b"c", None, 3)],
    "reads go back": [put(1, 2, b"a", 1), put(3, 20, b"b", 2), get(4, 5, b"b", 2), get(6, 7, b"a", 1)],
    "a deleted value is seen again": [put(1, 2, b"a", 1), delete(3, 4, 2), get(5, 6, None), get(7, 8, b"a", 1)],
    "an unknown deletion is seen, and its value after it": [
        put(1, 2, b"a", 1),
        delete(3, None),
        get(4, 5, None),
        get(6, 7, b"a", 1),
    ],
    "unknown, there, not there, there": [
        put(1, None, b"a"),
        get(2, 3, b"a", 1),
        put(4, 5, b"b", 2),
        get(6, 7, b"b", 2),
        get(8, 9, b"a", 1),
    ],
    "unknown, there, gone, there": [put(1, None, b"a"), get(2, 3, b"a", 1), get(4, 5, None), get(6, 7, b"a", 1)],
    "stored twice": [put(1, 2, b"a", 1), delete(3, 4, 2), get(5, 6, b"a", 3)],
    "versions go down": [put(1, 2, b"a", 2), put(3, 4, b"b", 1)],
    "seen before it was written": [get(1, 2, b"a", 1), put(3, 4, b"a", 1)],
    "nobody wrote it": [get(1, 2, b"a", 1)],
    "refused although it fits": [put(1, 2, b"a", 1), changed(3, 4, b"b", 1, 1)],
    "refused on absence although there is nothing": [changed(3, 4, b"b", None, None)],
    "refused for a version that nobody wrote": [put(1, 2, b"a", 1), changed(3, 4, b"b", 1, 2)],
    "refused for the version of what was deleted": [put(1, 2, b"a", 1), delete(3, 4, 2), changed(5, 6, b"b", None, 1)],
    "one unknown deletion and two that were seen": [
        delete(1, None),
        put(2, 3, b"a", 1),
        get(4, 5, None),
        put(6, 7, b"b", 2),
        get(8, 9, None),
    ],
    "one version, two values": [put(1, None, b"a"), put(2, None, b"b"), get(3, 4, b"a", 1), get(5, 6, b"b", 1)],
}


@pytest.mark.parametrize("name", GOOD)
def test_linearizable_history_is_accepted(name: str) -> None:
    assert by_all_orders(GOOD[name])
    check({b"k": GOOD[name]})


@pytest.mark.parametrize("name", BAD)
def test_not_linearizable_history_is_rejected(name: str) -> None:
    assert not by_all_orders(BAD[name])
    with pytest.raises(NotLinearizable, match="b'k'") as caught:
        check({b"j": GOOD["one after the other"], b"k": BAD[name]})
    assert caught.value.key == b"k" and not is_linearizable(BAD[name])


# -- random histories -------------------------------------------------------------------------------------------------


class Register:
    """A register that answers correctly."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.value: bytes | None = None
        self.version: bytes | None = None
        self.next = 0

    def take(self, op: Operation) -> Operation:
        """Execute the operation. Return it with its result."""
        if op.kind == "get":
            op.value, op.version = self.value, self.version
        elif op.expected is not None and op.expected != (self.version or ABSENT):
            op.refused, op.version = True, self.version
        else:
            self.next += 1
            op.version, self.value = b"%016d" % (self.next * 10), op.value
            self.version = None if op.value is None else op.version
        return op


def history_of(rng: random.Random, length: int, clients: int, unknown: float) -> list[Operation]:
    """Return a linearizable history: each operation takes effect between its call and its answer, or later or never if
    no answer came."""
    register, now, done = Register(rng), 0, []
    open_ops: list[Operation | None] = [None] * clients
    taken: set[int] = set()
    late: list[Operation] = []
    versions = [ABSENT]
    while len(done) < length:
        now += 1
        at = rng.randrange(clients)
        op = open_ops[at]
        if op is None:
            kind = rng.choice(("get", "get", "put", "delete", "cas", "cas"))
            value = b"v%d" % now if kind == "put" or (kind == "cas" and rng.random() < 0.8) else None
            expected = (rng.choice(versions[-4:]) if rng.random() < 0.8 else b"%016d" % 5) if kind == "cas" else None
            open_ops[at] = Operation(kind, now, None, value, expected, client=f"c{at}")
            done.append(open_ops[at])
        elif id(op) not in taken and rng.random() < 0.6:
            taken.add(id(op))
            if rng.random() < unknown:
                open_ops[at] = None
                late.append(op)
            else:
                versions.append(register.take(op).version or ABSENT)
        elif id(op) in taken:
            op.answered, open_ops[at] = now, None
        if late and rng.random() < 0.05:
            op = late.pop(rng.randrange(len(late)))
            if rng.random() < 0.6:
                register.take(op)
    for op in done:
        if op.answered is None:
            op.version, op.refused = None, False
            op.value = None if op.kind == "get" else op.value
    return done


def spoiled(rng: random.Random, history: list[Operation]) -> list[Operation]:
    """Return the history with one changed reply."""
    answered = [op for op in history if op.answered is not None]
    gets = [op for op in answered if op.kind == "get"]
    if gets and rng.random() < 0.6:
        told = rng.choice(gets)
        other = rng.choice([op for op in answered if op.value is not None and not op.refused] or [told])
        told.value, told.version = rng.choice(((other.value, other.version), (None, None)))
    elif answered:
        op = rng.choice(answered)
        op.refused = op.kind == "cas" and not op.refused
        op.version = rng.choice(answered).version if op.refused else op.version or V[999]
    return history


def by_all_orders(history: Sequence[Operation]) -> bool:
    """Return whether the history is linearizable, by trying all orders. Unknown versions may have any value."""
    history = [op for op in history if op.kind != "get" or op.answered is not None]
    sure = [op for op in history if op.answered is not None]
    unsure = [op for op in history if op.answered is None]
    for count in range(len(unsure) + 1):
        for some in combinations(unsure, count):
            if any(_explains(order) for order in permutations([*sure, *some]) if _is_in_time(order)):
                return True
    return False


def _is_in_time(order: Sequence[Operation]) -> bool:
    first_answer = LATE
    for op in reversed(order):
        if op.invoked > first_answer:
            return False
        first_answer = min(first_answer, op.answered or LATE)
    return True


def _explains(order: Sequence[Operation]) -> bool:
    """Return whether a register explains this order. The first reply with a version fixes it."""
    value: bytes | None = None
    version: bytes | None = None
    floor = b""
    known = {op.version for op in order if op.answered and not op.reads}
    for op in order:
        told = op.version
        if told is None and op.answered is None and op.value is not None:
            told = next((o.version for o in order if o.kind == "get" and o.value == op.value), None)
        names = told if op.reads else op.expected
        if value is not None and version is None and names and names > floor and names not in known:
            version = floor = names
        if op.kind == "get" and (value, version) != (op.value, op.version):
            return False
        if op.kind == "cas" and op.answered is None and not _holds(op, value, version):
            return False
        if op.kind == "cas" and op.answered is not None:
            if _holds(op, value, version) == op.refused:
                return False
            if op.refused and (op.version is None) != (value is None):
                return False
            if op.refused and op.version != (version if value is not None else None):
                return False
        if not op.reads:
            if told is not None and told <= floor:
                return False
            floor = max(floor, told or floor)
            value, version = op.value, told if op.value is not None else None
    return True


def _holds(op: Operation, value: bytes | None, version: bytes | None) -> bool:
    return value is None if op.expected == ABSENT else value is not None and version == op.expected


@pytest.mark.parametrize("seed", range(30))
def test_checker_agrees_with_trying_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(30):
        history = history_of(rng, rng.randint(3, 6), rng.randint(1, 3), 0.2)
        assert is_linearizable(history), [str(op) for op in history]
        history = spoiled(rng, history)
        verdict = by_all_orders(history)
        assert is_linearizable(history) == verdict, [str(op) for op in history]
        verdicts.add(verdict)
    assert verdicts == {True, False}


@pytest.mark.parametrize("seed", range(5))
def test_long_histories_are_judged(seed: int) -> None:
    """A search that goes through the orders one by one would not end before pytest's timeout."""
    rng = random.Random(seed)
    history = history_of(rng, 600, 6, 0.1)
    assert is_linearizable(history)
    for _ in range(3):
        broken = spoiled(random.Random(rng.random()), history)
        is_linearizable(broken)


# -- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_window_contains_the_wrong_read(seed: int) -> None:
    rng = random.Random(seed)
    history = history_of(rng, 300, 4, 0.1)
    gets = [op for op in history[150:] if op.kind == "get" and op.answered and op.value is not None]
    wrong = rng.choice(gets)
    before = [op for op in history if op.answered and op.answered < wrong.invoked and not op.reads and op.value]
    old = before[-20]
    wrong.value, wrong.version = old.value, old.version
    window = shortest_window(history)
    answered = [op for op in window if op.answered is not None]
    assert not is_linearizable(history) and wrong in answered
    assert len(answered) < 20, "much fewer entries than the whole history"
    assert max(op.answered for op in answered) <= wrong.answered


def test_window_of_stale_read_has_the_write_and_the_read() -> None:
    history = [put(10 * n + 1, 10 * n + 5, b"v%d" % n, n) for n in range(1, 50)]
    history += [get(10 * n + 6, 10 * n + 9, b"v%d" % n, n) for n in range(1, 50) if n != 30]
    history.append(get(307, 308, b"v28", 28))
    window = shortest_window(history)
    assert [op.invoked for op in window] == [301, 307]
    assert "stale" not in str(NotLinearizable(b"k", window)) and "v28" in str(NotLinearizable(b"k", window))
