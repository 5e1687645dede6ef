"""If `commit` has returned, recovery finds the records again, whatever the machine does. A model checks this promise.

The model holds the state of every group. A crash in a commit may leave any prefix of the commit batch in flight, and
nothing else. A crash in a recovery changes nothing. Hypothesis prints the failing seed, from which the run replays.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import Corruption, StorageFailed
from sandq.storage.files import Files
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.wal import Kind, Record, RecoveredGroup, Wal
from sandq.storage.wal_format import scan, segment_number
from tests.support.examples import examples
from tests.support.storage.faulty_files import FaultyFiles, Plan

SEGMENT_BYTES = 4096
SEEDS = st.integers(0, 2**32)


@dataclass
class Group:
    """Expected state of a group."""

    term: int = 0
    vote: str | None = None
    base: int = 1
    base_term: int = 0
    members: list[list[str]] = field(default_factory=lambda: [[], []])
    entries: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return self.base - 1 + len(self.entries)

    def copy(self) -> Group:
        return dataclasses.replace(self, entries=dict(self.entries))

    def note(self, kind: int, index: int, term: int, payload: bytes) -> None:
        if kind == Kind.ENTRY:
            for gone in range(index, self.last + 1):
                del self.entries[gone]
            self.entries[index] = (payload, term)
        elif kind == Kind.TRUNCATE:
            self.entries = {i: entry for i, entry in self.entries.items() if i < index}
        elif kind == Kind.HARD_STATE:
            self.term, self.vote = term, msgpack.unpackb(payload)
        elif kind == Kind.BASE:
            self.base, self.base_term, self.members = index, term, msgpack.unpackb(payload)
            self.entries = {i: entry for i, entry in self.entries.items() if i >= index}
        else:
            assert kind == Kind.COPY and self.entries[index] == (payload, term)

    def facts(self) -> tuple[object, ...]:
        term, vote = self.term, self.vote
        if self.entries and self.entries[self.last][1] > term:
            term, vote = self.entries[self.last][1], None
        entries = [(command, index, t) for index, (command, t) in sorted(self.entries.items())]
        return term, vote, self.base, self.base_term, self.members, entries


def facts(group: RecoveredGroup) -> tuple[object, ...]:
    members = [group.voters, group.learners]
    return group.term, group.voted_for, group.base_index, group.base_term, members, group.entries


State = dict[int, Group]
NOTHING = Group().facts()


def after(state: State, records: list[Record]) -> State:
    """Return the state after these records. Groups that `state` lacks begin empty."""
    new = copied(state)
    for kind, group, index, term, payload in records:
        new.setdefault(group, Group()).note(kind, index, term, payload)
    return new


def copied(state: State) -> State:
    return {number: group.copy() for number, group in state.items()}


def possible(state: State, records: list[Record]) -> list[State]:
    """Return the states after each prefix of a commit batch."""
    return [after(state, records[:n]) for n in range(len(records) + 1)]


def commit_batch_of(rng: random.Random, state: State) -> list[Record]:
    """Return a random commit batch that fits after `state`."""
    records: list[Record] = []
    now = copied(state)
    for _ in range(rng.choice([1, 1, 2, 3, 6, 12])):
        number = rng.randint(1, 3)
        group = now.setdefault(number, Group())
        for record in _some_records(rng, number, group):
            group.note(record[0], *record[2:])
            records.append(record)
    return records or commit_batch_of(rng, state)


def _some_records(rng: random.Random, number: int, group: Group) -> list[Record]:
    what = rng.randrange(20)
    if what < 12:
        index, term = group.last + 1, group.term
        if what == 0 and group.entries:
            index, term = rng.choice(sorted(group.entries)), group.term + 1
        size = rng.choice([0, 1, 3, 8, 60, 300]) if rng.randrange(60) else rng.choice([SEGMENT_BYTES, 9000])
        entry: Record = (Kind.ENTRY, number, index, term, rng.randbytes(size))
        if term > group.term and rng.randrange(2):
            return [(Kind.HARD_STATE, number, 0, term, msgpack.packb(None)), entry]
        return [entry]
    if what < 15:
        vote = rng.choice([None, "n1#1", "node-two#27"])
        return [(Kind.HARD_STATE, number, 0, group.term + rng.randrange(2), msgpack.packb(vote))]
    if what < 17 and group.entries:
        index = rng.choice(sorted(group.entries))
        members = msgpack.packb([["n1#1", f"n2#{index}"], []])
        return [(Kind.BASE, number, index, group.entries[index][1], members)]
    if what == 17:
        members = msgpack.packb([[], ["n3#1"]])
        index = group.last + rng.randint(1, 50)
        return [(Kind.BASE, number, index, group.term, members)]
    if what == 18 and group.entries:
        return [(Kind.TRUNCATE, number, rng.choice(sorted(group.entries)), 0, b"")]
    return [(Kind.COPY, number, index, term, command) for index, (command, term) in sorted(group.entries.items())]


class Machine:
    """A log on a disk that may lose its power, with its model."""

    def __init__(self, rng: random.Random, files: MemoryFiles | None = None) -> None:
        self.rng = rng
        self.files = files or MemoryFiles()
        self.may_be: list[State] = [{}]
        """States that recovery may find, if no commit batch is in flight."""
        self.in_flight: list[Record] = []
        self.wal = self.open()

    def open(self, over: Files | None = None) -> Wal:
        """Recover, and check the found state. All later recoveries must find the same state."""
        known = {group for state in self.may_be for group in state} | {record[1] for record in self.in_flight}
        wal, groups = Wal.open(
            over or self.files, segment_bytes=SEGMENT_BYTES, known_groups=lambda group: group in known
        )
        # A group with only its beginning in the log counts as absent.
        found = {number: facts(group) for number, group in groups.items() if facts(group) != NOTHING}
        for state in [*self.may_be, *possible(self.may_be[0], self.in_flight)[1:]]:
            if {n: group.facts() for n, group in state.items() if group.facts() != NOTHING} == found:
                self.may_be, self.in_flight = [_settled(state)], []
                return wal
        raise AssertionError(f"found {found}, expected {self.may_be} and a part of {self.in_flight}")

    @property
    def state(self) -> State:
        (state,) = self.may_be
        return state

    def commit(self, records: list[Record]) -> None:
        self.in_flight = records
        self.wal.commit(records)
        self.may_be, self.in_flight = [after(self.state, records)], []

    def forget(self, group: int) -> None:
        without = {number: kept for number, kept in self.state.items() if number != group}
        # A crash between the two writes leaves an empty log and the vote.
        emptied = {**without, group: Group(term=self.state[group].term, vote=self.state[group].vote)}
        self.may_be = [self.state, emptied, without]
        self.wal.forget(group)
        self.may_be = [without]

    def step(self) -> None:
        """Do one random action of a node."""
        what = self.rng.randrange(30)
        if what < 22:
            self.commit(commit_batch_of(self.rng, self.state))
        elif what < 25:
            self.wal.release({number: group.base for number, group in self.state.items()})
        elif what == 25:
            self.copy_what_pins()
        elif what == 26:
            self.wal.prepare()
        elif what == 27 and self.state:
            self.forget(self.rng.choice(sorted(self.state)))
        elif what == 28:
            self.wal.seal()
            self.files = self.files.kill()
            self.wal = self.open()
            assert self.wal.sealed
        elif what == 29:
            self.files = self.files.kill()
            self.wal = self.open()

    def copy_what_pins(self) -> None:
        for number in self.wal.pinned_by():
            entries = sorted(self.state[number].entries.items())
            self.commit([(Kind.COPY, number, index, term, command) for index, (command, term) in entries])
        self.wal.release({number: group.base for number, group in self.state.items()})

    def power_loss(self) -> None:
        """Lose the power, and recover; sometimes lose it again while recovering."""
        while True:
            self.files = self.files.crash(self.rng)
            if self.rng.randrange(2):
                self.files.crash_after(self.rng.randint(1, 6), inside=bool(self.rng.randrange(2)))
            try:
                self.wal = self.open()
            except Crashed:
                continue
            self.files.crash_after(1 << 60)
            return


def _settled(state: State) -> State:
    """Return the state as recovery leaves it. If recovery raises a term, the term stays raised."""
    for group in state.values():
        group.term, group.vote = group.facts()[:2]  # type: ignore[assignment]
    return state


@settings(max_examples=examples(120), deadline=None)
@given(SEEDS)
def test_committed_records_are_found_after_every_crash(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine(rng)
    for _ in range(6):
        machine.files.crash_after(rng.randint(1, 40), inside=bool(rng.randrange(2)))
        with pytest.raises(Crashed):
            while True:
                machine.step()
        machine.power_loss()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_crash_at_every_single_operation(seed: int, inside: bool) -> None:
    for operation in itertools.count(1):
        rng = random.Random(seed)
        files = MemoryFiles()
        machine = Machine.__new__(Machine)
        machine.rng, machine.files, machine.may_be, machine.in_flight = rng, files, [{}], []
        files.crash_after(operation, inside=inside)
        try:
            machine.wal = machine.open()
            for _ in range(30):
                machine.step()
        except Crashed:
            machine.power_loss()
            machine.commit(commit_batch_of(rng, machine.state))
            machine.power_loss()
        else:
            return


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_a_failed_sync_is_never_believed(seed: int) -> None:
    """After a failed fsync, the kernel may return bytes that are not on the disk.

    So a restart must write the bytes that it reads again before it trusts them."""
    rng = random.Random(seed)
    machine = Machine(rng)
    for _ in range(4):
        plan = Plan(fail_sync_at=rng.randint(3, 14))
        try:
            machine.wal = machine.open(FaultyFiles(machine.files, plan))
            while True:
                machine.commit(commit_batch_of(rng, machine.state))
        except StorageFailed:
            with pytest.raises(StorageFailed):
                machine.wal.commit([(Kind.HARD_STATE, 1, 0, 1, msgpack.packb(None))])
        machine.files = machine.files.kill()
        machine.wal = machine.open()
        machine.power_loss()


def filled(rng: random.Random, *, batches: int, seal: bool) -> tuple[Machine, list[State], int]:
    """Return a machine after some commit batches, the possible states after the last batch, and its start in the
    segment."""
    machine = Machine(rng)
    for _ in range(batches):
        machine.commit(commit_batch_of(rng, machine.state))
    last = commit_batch_of(rng, machine.state)
    states = possible(machine.state, last)
    start, number = machine.wal._end, machine.wal._number
    machine.commit(last)
    if seal:
        start, number, states = machine.wal._end, machine.wal._number, states[-1:]
        machine.wal.seal()
    if machine.wal._number != number:
        start = 64  # the batch opened a segment, whose opening batch may be damaged without loss
    return machine, states, start


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_flipped_bit_is_rejected_or_in_last_batch(seed: int) -> None:
    rng = random.Random(seed)
    machine, states, start = filled(rng, batches=rng.randint(0, 12), seal=bool(rng.randrange(2)))
    names = machine.files.list("wal")
    for _ in range(40):
        name = rng.choice(names)
        content = machine.files.read(f"wal/{name}")
        used = len(content.rstrip(b"\0"))
        offset = rng.randrange(used)
        damaged = machine.files.kill()
        byte = content[offset] ^ 1 << rng.randrange(8)
        damaged.open(f"wal/{name}").write_at(offset, bytes([byte]))
        damaged_machine = Machine.__new__(Machine)
        damaged_machine.rng, damaged_machine.files, damaged_machine.in_flight = rng, damaged, []
        damaged_machine.may_be = [copied(state) for state in states]
        if name == names[-1] and offset >= start:
            try:
                damaged_machine.wal = damaged_machine.open()
            except Corruption:
                assert start == 64, "a torn end was reported as damage"
                continue
            damaged_machine.commit(commit_batch_of(rng, damaged_machine.state))
            damaged_machine.power_loss()
        else:
            with pytest.raises(Corruption) as caught:
                damaged_machine.open()
            assert name in str(caught.value), caught.value
            assert 0 <= caught.value.details["offset"] <= len(content)  # type: ignore[operator]


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_lost_sectors_are_rejected_or_in_last_batch(seed: int) -> None:
    """The disk replaces whole sectors with zeros or garbage."""
    rng = random.Random(seed)
    machine, states, start = filled(rng, batches=rng.randint(2, 12), seal=False)
    names = machine.files.list("wal")
    for _ in range(20):
        name = rng.choice(names)
        content = machine.files.read(f"wal/{name}")
        used = len(content.rstrip(b"\0"))
        sector = rng.randrange(0, used, 512)
        end = min(sector + 512 * rng.randint(1, 4), used)
        damaged = machine.files.kill()
        wrong = bytes(end - sector) if rng.randrange(2) else rng.randbytes(end - sector)
        damaged.open(f"wal/{name}").write_at(sector, wrong)
        changed = [at for at in range(sector, end) if content[at] != wrong[at - sector]]
        if not changed:
            continue
        sector = changed[0]
        damaged_machine = Machine.__new__(Machine)
        damaged_machine.rng, damaged_machine.files, damaged_machine.in_flight = rng, damaged, []
        damaged_machine.may_be = [copied(state) for state in states]
        # One intact record header of a later commit batch is enough to detect the damage. Damage without one cannot be
        # distinguished from a torn end.
        number = segment_number(name)
        assert number is not None
        if name != names[-1] or any(sight.batch_start > sector for sight in scan(content, number, end)):
            with pytest.raises(Corruption):
                damaged_machine.open()
        elif sector >= start > 64:
            damaged_machine.open()
