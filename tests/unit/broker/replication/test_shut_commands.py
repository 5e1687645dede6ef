"""A fault at any step of any command shuts one replica at its rows; every way on ends with the same rows (ADR 46)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sandq.broker.replication.shut import Step
from sandq.partition import commands as c
from sandq.raft import Skip
from tests.support.partition.command_corpus import Recording, recordings
from tests.support.partition.shut_bed import GROUP, SKIP_ID, Fault, ShutBed, skipped

COMMANDS = [cls for _, cls in sorted(c._CLASSES.items())]
UNWRITTEN = 3
"""Entries before the failed one whose changes are not in the rows yet."""
STEPS = {"decode": Step.DECODE, "write": Step.APPLY, "end": Step.APPLY, "status": Step.STATUS, "drain": Step.DRAIN}


class Case(NamedTuple):
    """A log with one entry that cannot be applied."""

    recording: Recording
    log: list[bytes]
    at: int
    """Position of the entry; its index is one more."""

    @property
    def poison(self) -> bytes:
        return self.log[self.at]

    def bed(self) -> ShutBed:
        return ShutBed(self.recording.kind, self.recording.settings)

    def reference(self, log: list[bytes] | None = None, skip: Skip | None = None) -> ShutBed:
        """Return a bed that never failed."""
        bed = self.bed()
        bed.run_log(self.log if log is None else log, skip)
        assert bed.replica.failure is None, bed.replica.failure
        return bed


@pytest.fixture(scope="module")
def corpus() -> list[Recording]:
    return recordings()


def cases_of(corpus: list[Recording], command_class: type[c.Command]) -> Iterator[Case]:
    """Yield a case for each log with such a command: its first such entry, merged with two idle entries."""
    for recording in corpus:
        positions = [at for at in recording.positions(command_class) if at > 0]
        if positions:
            yield _case(recording, positions[0])


def _case(recording: Recording, at: int) -> Case:
    log = [entry.encode() for entry in recording.entries]
    entry = recording.entries[at]
    log[at] = c.Entry(entry.now_ms, (c.Clock(), *entry.commands, c.Clock())).encode()
    return Case(recording, log, at)


def test_corpus_has_every_command(corpus: list[Recording]) -> None:
    missing = [cls.__name__ for cls in COMMANDS if not list(cases_of(corpus, cls))]
    assert not missing


def run(case: Case) -> ShutBed:
    """Apply the log and entries of another partition; the entries before the failing one are not written yet."""
    bed = case.bed()
    start = max(case.at - UNWRITTEN, 0)
    bed.run_log(case.log[:start])
    tasks = [bed.task(at + 1, case.log[at]) for at in range(start, len(case.log))]
    bed.applier.run([bed.other_task(), *tasks[: case.at + 1 - start]])
    bed.applier.run([bed.other_task(), *tasks[case.at + 1 - start :]])
    bed.applier.rest()
    return bed


def faults_of(case: Case) -> list[Fault]:
    """Return a fault for each step, and for the first, a middle and the last write."""
    counting = Fault("none", case.poison)
    with counting.planted():
        run(case)
    last = counting.writes
    writes = sorted({1, (last + 1) // 2, last} - {0}) if last else []
    found = [Fault("write", case.poison, write) for write in writes]
    return found + [Fault(step, case.poison) for step in ("decode", "end", "status", "drain")]


def fail(case: Case, fault: Fault) -> ShutBed:
    """Return a bed whose replica is shut by the fault while the other partition continues in the same runs."""
    with fault.planted():
        bed = run(case)
    failure = bed.replica.failure
    assert failure is not None and failure.step is STEPS[fault.step], failure
    assert bed.replica.applied_index == failure.rows_index
    if failure.index is None:  # the entry asks for a digest: its rows are written before the status is asked for
        assert fault.step == "status" and failure.rows_index == case.at + 1
    else:
        assert failure.rows_index < failure.index
        # other entries may come before the rows are written
        assert failure.index == case.at + 1 or fault.step == "drain"
    assert [each for each in bed.published for group, _ in each.shut if group == GROUP]
    return bed


@pytest.mark.parametrize("command_class", COMMANDS, ids=lambda cls: cls.__name__)
def test_fault_at_any_step_of_a_command_leaves_only_whole_entries_in_the_rows(
    corpus: list[Recording], command_class: type[c.Command]
) -> None:
    for case in cases_of(corpus, command_class):
        reference = case.reference()
        for fault in faults_of(case):
            bed = fail(case, fault)
            told = f"{case.recording.name}, {fault.step} {fault.write}"
            assert bed.other.applied_index > 0 and bed.other.failure is None, told
            rows_index = bed.replica.applied_index
            if rows_index:
                assert bed.rows() == case.reference(case.log[:rows_index]).rows(), told
            else:
                assert not bed.rows(), told
            bed.load()
            bed.run_log(case.log)
            assert bed.rows() == reference.rows() and bed.digest() == reference.digest(), told


@pytest.mark.parametrize("positions", [None, (1,)], ids=["entry", "command"])
@pytest.mark.parametrize("command_class", COMMANDS, ids=lambda cls: cls.__name__)
def test_skip_of_a_command_ends_with_the_same_rows_whenever_replicas_restart(
    corpus: list[Recording], command_class: type[c.Command], positions: tuple[int, ...] | None
) -> None:
    if command_class is c.Skipped and positions is not None:
        return  # no entry is left to skip
    for case in cases_of(corpus, command_class):
        fault = faults_of(case)[0]
        bed = fail(case, fault)
        index = case.at + 1
        command = skipped(bed.replica, case.poison, positions)
        log = [*case.log]
        log[case.at] = command
        skip = Skip(index, 1, SKIP_ID, command)
        reference = case.reference(log, skip)
        half_way = bed.copied()
        half_way.run_log(log, skip)
        assert half_way.replica.failure is None, half_way.replica.failure
        assert half_way.rows() == reference.rows() and half_way.digest() == reference.digest(), case.recording.name
        for until in range(index, len(log) + 1):
            bed.load()
            bed.run_log(log[:until])
        bed.load()
        bed.run_log(log, skip)
        assert bed.rows() == reference.rows(), case.recording.name
        applied = case.reference()
        applied.run_log(case.log, skip)
        failure = applied.replica.failure
        assert failure is not None and failure.step is Step.SKIPPED, (
            "the replica has applied the entry that the group skipped"
        )
