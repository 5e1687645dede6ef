"""Check whether one order of all operations explains the answers about the keys of a compacted topic.

Each key is a register of its own: it has a value and the value's version, or nothing. An operation takes effect at one
moment between its invocation and its answer. An operation without an answer takes effect at any moment after its
invocation, or never. The search begins with the empty order and tries every operation that may be next (Wing and Gong).
It never checks the same set of operations with the same state twice (Lowe). It also skips a set if another set, already
checked, allows more continuations. A partition promises more than a register, and these promises make the search fast:

* Versions rise in the order of writes, so only one of the writes with a known version may be next.
* Values are unique, so a read of the value of an unanswered write also shows its version.
* A read that fits is added to the order at once, because it changes no state.
* Unanswered writes whose values were never read are interchangeable, except for their conditions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import le
from typing import NamedTuple

NEVER = 1 << 62
ABSENT = b""
"""Expected version that means: the key must have no value."""
MOST_CONFIGURATIONS = 1_000_000
"""Maximum number of configurations to check for one key. If the search needs more, the result is unknown."""


@dataclass(slots=True)
class Operation:
    """An operation on a key, with its answer. Times are event numbers, counted from 1."""

    kind: str
    """"get", "put" or "delete"; "cas" is a put or (without a value) a delete on a condition."""
    invoked: int
    answered: int | None = None
    """None if the outcome is unknown; a get without an answer has no information."""
    value: bytes | None = None
    """Unique value that is written, or the value that a get has read. None for no value."""
    expected: bytes | None = None
    """Version that the key must have for a cas, or `ABSENT`."""
    version: bytes | None = None
    """Version in the answer: the new version after a write, the current version after a get or a rejected cas."""
    refused: bool = False
    """Whether the operation is a cas that was rejected, because the key had another version."""
    client: str = ""

    @property
    def reads(self) -> bool:
        return self.kind == "get" or self.refused

    def __str__(self) -> str:
        told = "?" if self.answered is None else "changed: " * self.refused + _text(self.version)
        on = "" if self.expected is None else f" if {_text(self.expected)}"
        until = "" if self.answered is None else self.answered
        return f"[{self.invoked}..{until}] {self.client} {self.kind} {_text(self.value)}{on} -> {told}"


class NotLinearizable(AssertionError):
    """No order explains the answers about `key`.

    `window`: a part of the history for which no order exists, whatever the state before it. It is as short as the
    search could make it."""

    def __init__(self, key: bytes, window: Sequence[Operation]) -> None:
        listed = "\n".join(f"  {operation}" for operation in window)
        super().__init__(f"no order of operations explains what was seen of {key!r}:\n{listed}")
        self.key = key
        self.window = window


def check(histories: Mapping[bytes, Sequence[Operation]]) -> None:
    """Check all keys, which have no value at first. Raises NotLinearizable."""
    for key, history in histories.items():
        if not is_linearizable(history):
            raise NotLinearizable(key, shortest_window(history))


def is_linearizable(history: Sequence[Operation]) -> bool:
    return _Search(history, 0, NEVER).succeeds()


def shortest_window(history: Sequence[Operation]) -> list[Operation]:
    """Return a short part of a history that is not linearizable.

    If a part of the history is not linearizable, no longer part is. So a binary search finds a short part."""
    ends = sorted(op.answered for op in history if op.answered is not None)
    stop = ends[_first(len(ends), lambda at: not _Search(history, 0, ends[at]).succeeds())]
    starts = [0, *(at for at in ends if at < stop)]
    last = _first(len(starts), lambda at: _Search(history, starts[at], stop).succeeds()) - 1
    start = starts[max(last, 0)]
    kept = list(history)
    for operation in history:
        without = [op for op in kept if op is not operation]
        if operation.reads and not _Search(without, start, stop).succeeds():
            kept = without
    return _cut(kept, start, stop)


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first number below `count` for which `holds` is true, by a binary search; `count` if none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _cut(history: Sequence[Operation], start: int, stop: int) -> list[Operation]:
    """Return the operations between two times, with the answers known at `stop`, in the order of their invocations."""
    found = []
    for op in sorted(history, key=lambda op: op.invoked):
        if op.invoked >= stop or (op.answered or NEVER) <= start:
            continue
        if op.answered is None or op.answered > stop:
            op = replace(op, answered=None, version=None, refused=False)
        if op.kind == "get" and op.answered is None:
            continue
        if op.reads and op.invoked < start:
            continue  # it may have taken effect before the window
        found.append(op)
    return found


# -- the search ------------------------------------------------------------------------------------------------------


class Some(Enum):
    """Special values, which are not bytes."""

    ANY = "whatever was there before the window"
    UNSEEN = "what somebody wrote and nobody read"


class State(NamedTuple):
    value: bytes | Some | None
    version: bytes | None = None
    """None: there is no value, or its version is unknown."""
    floor: bytes = b""
    """Greatest version so far. Versions of later writes are greater."""


class _Class:
    """Optional writes with the same effect. Only the number of them that took effect matters."""

    def __init__(self, write: Operation, version: bytes | None) -> None:
        self.write = write
        self.version = version
        self.invoked: list[int] = []


class Configuration(NamedTuple):
    taken: int
    """Bit set of the required operations that are already in the order."""
    writes: int
    """Number of writes among them."""
    used: tuple[int, ...]
    """Number of used operations, for each class of optional operations."""
    state: State


class _Search:
    def __init__(self, history: Sequence[Operation], start: int, stop: int) -> None:
        """Search for an order of the operations between two times.

        If `start` > 0, the first state is unknown, and operations in progress then may have taken effect before."""
        operations = _cut(history, start, stop)
        self._learn(operations)
        self._required = [op for op in operations if self._is_required(op, start)]
        self._versions = [op.version or self._version_of.get(op.value) for op in self._required]
        writes = [at for at, op in enumerate(self._required) if not op.reads]
        self._writes = sorted(writes, key=lambda at: self._versions[at] or b"")
        self._classes = self._classified([op for op in operations if not self._is_required(op, start)])
        self._first_state = State(Some.ANY if start else None)

    def _learn(self, operations: list[Operation]) -> None:
        """Record the version of each value."""
        gets = [op for op in operations if op.kind == "get" and op.value is not None]
        answered = [op for op in operations if not op.reads and op.answered is not None]
        self._read = {op.value for op in gets}
        self._version_of: dict[bytes | None, bytes | None] = {}
        for op in (*answered, *gets):
            if op.value is not None:
                self._version_of.setdefault(op.value, op.version)
        self._value_of = {version: value for value, version in self._version_of.items()}
        self._known = {op.version for op in answered} | set(self._version_of.values())
        told = {op.version for op in operations if op.refused and op.version}
        told |= {op.expected for op in answered if op.expected}
        self._has_strange = bool(told - self._known)
        """Whether some version belongs to an unknown write."""

    def _is_required(self, op: Operation, start: int) -> bool:
        if op.reads:
            return True
        return op.invoked >= start and (op.answered is not None or op.value in self._read)

    def _classified(self, optional: list[Operation]) -> list[_Class]:
        classes: dict[object, _Class] = {}
        for op in optional:
            version = op.version or self._version_of.get(op.value)
            if op.value is not None and version is None and not self._has_strange:
                continue  # whether it took effect cannot be observed
            key = op.value is None, op.expected, version
            classes.setdefault(key, _Class(op, version)).invoked.append(op.invoked)
        return list(classes.values())

    def succeeds(self) -> bool:
        """Return whether there is an order."""
        stack = [Configuration(0, 0, (0,) * len(self._classes), self._first_state)]
        seen: dict[tuple[int, State], list[tuple[int, ...]]] = {}
        looked_at = 0
        while stack:
            present = stack.pop()
            taken, limit, candidates = self._take_reads(present.taken, present.state)
            if taken == (1 << len(self._required)) - 1:
                return True
            known = seen.setdefault((taken, present.state), [])
            if any(all(map(le, fewer, present.used)) for fewer in known):
                continue  # all continuations are possible there, too
            known.append(present.used)
            looked_at += 1
            assert looked_at < MOST_CONFIGURATIONS, "too many unknown answers: the search takes too long"
            self._branch(present._replace(taken=taken), limit, candidates, stack)
        return False

    def _frontier(self, taken: int) -> tuple[int, list[int]]:
        """Return the earliest answer time of the remaining required operations, and the operations invoked before it.

        Only these operations may be next in the order."""
        limit, candidates = NEVER, []
        at = (~taken & (taken + 1)).bit_length() - 1
        while at < len(self._required) and self._required[at].invoked < limit:
            if not taken >> at & 1:
                candidates.append(at)
                limit = min(limit, self._required[at].answered or NEVER)
            at += 1
        return limit, candidates

    def _take_reads(self, taken: int, state: State) -> tuple[int, int, list[int]]:
        """Add all reads that fit the state to the order."""
        while True:
            limit, candidates = self._frontier(taken)
            fitting = [at for at in candidates if self._fits(state, self._required[at])]
            if not fitting:
                return taken, limit, candidates
            for at in fitting:
                taken |= 1 << at

    def _fits(self, state: State, op: Operation) -> bool:
        """Return whether the operation is a read that gives no new information."""
        return op.reads and self._read_in(state, op) == state

    def _branch(self, present: Configuration, limit: int, candidates: list[int], stack: list[Configuration]) -> None:
        """Push all configurations that may be next, the most likely one last."""
        taken, writes, used, state = present
        for number, each in enumerate(self._classes):
            if used[number] < bisect_left(each.invoked, limit):
                after = self._written(state, each.write, each.version)
                if after is not None and after[:2] != state[:2]:
                    counts = (*used[:number], used[number] + 1, *used[number + 1 :])
                    stack.append(Configuration(taken, writes, counts, after))
        for at in candidates:
            after = self._read_in(state, self._required[at]) if self._required[at].reads else None
            if after is not None:
                stack.append(Configuration(taken | 1 << at, writes, used, after))
        following = self._writes[writes] if writes < len(self._writes) else None
        if following in candidates:
            after = self._written(state, self._required[following], self._versions[following])
            if after is not None:
                stack.append(Configuration(taken | 1 << following, writes + 1, used, after))

    # -- a register -----------------------------------------------------------------------------------------------

    def _may_have(self, state: State, version: bytes) -> bool:
        """Return whether a key with this state may have this version."""
        if state.value is Some.ANY:
            return True
        if state.value is Some.UNSEEN and state.version is None:
            return version > state.floor and version not in self._known
        return state.value is not None and state.version == version

    def _written(self, state: State, op: Operation, version: bytes | None) -> State | None:
        """Return the state after a stored write; None if it could not have been stored."""
        floor = state.floor
        if op.expected == ABSENT:
            if state.value is not None and state.value is not Some.ANY:
                return None
        elif op.expected is not None:
            if not self._may_have(state, op.expected):
                return None
            floor = max(floor, op.expected)
        if version is not None:
            if version <= floor:
                return None
            floor = version
        if op.value is None:
            return State(None, None, floor)
        return State(Some.UNSEEN if version is None else op.value, version, floor)

    def _read_in(self, state: State, op: Operation) -> State | None:
        """Return the state after a read or a rejected cas; None if the answer does not fit the state."""
        if op.refused and (op.version or ABSENT) == op.expected:
            return None  # the key had the expected version, so the cas should have been stored
        if op.version is None:
            return State(None, None, state.floor) if state.value in (None, Some.ANY) else None
        if not self._may_have(state, op.version):
            return None
        value = state.value
        if value is Some.ANY:
            value = self._value_of.get(op.version, Some.UNSEEN)
        if op.kind == "get" and value != op.value:
            return None
        return State(value, op.version, max(state.floor, op.version))


def _text(data: bytes | None) -> str:
    if data is None:
        return "-"
    if not data:
        return "absent"
    return data.hex().lstrip("0") if len(data) == 16 else repr(data)[1:]
