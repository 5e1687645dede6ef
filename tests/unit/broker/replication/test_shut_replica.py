"""Tests of replica failures: the failing step decides the shut position and the named entry (ADR 46)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from sandq.broker.health.entry_skips import replacement_of
from sandq.broker.health.shut_replicas import ShutReport
from sandq.broker.replication import applier
from sandq.broker.replication.applier import Applier, Apply, Published
from sandq.broker.replication.replica import METADATA_GROUP, MetadataReplica, PartitionReplica, loaded_status
from sandq.broker.replication.shut import Step
from sandq.metadata import commands as m
from sandq.metadata.state import MetadataState
from sandq.model.errors import StorageFailed, Unavailable
from sandq.model.features import FIRST_LEVEL
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows, skips
from sandq.partition.base.skips import SKIPS_KEPT, Skips
from sandq.partition.restore.restoring import NOT_OF_ROWS
from sandq.partition.state_machine import TimerPartition
from sandq.raft import Skip
from sandq.storage.keys import store_prefix
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import ALL, T, batch_of
from tests.support.partition.shut_bed import STORE, ShutBed
from tests.support.registered import register_node

LEASED = (c.OpenGroup("g", "earliest"), c.Append(batch_of(["a"])))
LEASE = c.Lease("g", T, (c.Grant("c", 1, 30_000),))


def bed() -> ShutBed:
    return ShutBed("timer", parse_settings({}).record())


def entry(*commands: c.Command) -> bytes:
    return c.Entry(T, commands).encode()


def test_rows_that_cannot_be_loaded_shut_the_replica() -> None:
    one = bed()
    one.run_log([entry(*LEASED)])
    one.stores.write([(store_prefix(STORE) + rows.STATE_KEY, b"\xc1")])
    failure = one.load().failure
    assert failure is not None and (failure.step, failure.index, failure.rows_index) == (Step.LOAD, None, 0)
    assert loaded_status(one.replica).applied_index == 0
    with pytest.raises(Unavailable, match="this replica is shut: it could not read its rows"):
        _ = one.replica.queries


def test_failing_status_shuts_the_loaded_replica() -> None:
    one = bed()
    one.run_log([entry(*LEASED)])
    with patch.object(TimerPartition, "status", side_effect=[KeyError("planted"), one.replica.status()]):
        replica = one.load()
        assert loaded_status(replica).applied_index == 1
    assert replica.failure is not None and (replica.failure.step, replica.failure.index) == (Step.STATUS, None)


def test_failed_store_is_no_reason_to_shut() -> None:
    one = bed()
    with patch.object(TimerPartition, "status", side_effect=StorageFailed("no disk")), pytest.raises(StorageFailed):
        loaded_status(one.load())
    assert one.replica.failure is None
    assert StorageFailed in NOT_OF_ROWS


def test_failure_behind_the_commands_blames_none_of_them() -> None:
    one = bed()
    one.run_log([entry(*LEASED)])
    with patch.object(PartitionReplica, "_delivery", side_effect=KeyError("planted")):
        one.applier.run([one.task(2, entry(c.Clock(), LEASE))])
    failure = one.replica.failure
    assert failure is not None and (failure.index, failure.command, failure.kind) == (2, None, None)


def test_fault_in_a_yielding_entry_shuts_only_its_own_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two partitions fails while an entry of the other one is half done."""
    monkeypatch.setattr(applier, "SLICE_S", -1.0)  # the entry yields whenever possible
    for poisoned in ("inner", "outer"):
        one = bed()
        one.run_log([entry(*LEASED)])
        inner = [one.other_task()]
        one.applier.other_tasks = lambda inner=inner: [inner.pop()] if inner else []  # type: ignore[misc]
        own = one.replica if poisoned == "outer" else one.other
        apply, left = TimerPartition._store, own._machine

        def failing(machine: TimerPartition, *arguments: Any, left: Any = left, apply: Any = apply) -> Any:
            machine.shared.yield_now()
            if machine is left:
                raise KeyError("planted")
            return apply(machine, *arguments)

        with patch.object(TimerPartition, "_store", failing):
            one.applier.run([one.task(2, entry(c.Append(batch_of(["b"]))))])
        one.applier.rest()
        assert not inner, "the other entry was applied within this one"
        assert (one.replica.failure is None, one.other.failure is None) == (poisoned == "inner", poisoned == "outer")
        assert sorted(group for each in one.published for group, _ in each.shut) == [7 if poisoned == "outer" else 8]
        went_on = one.other if poisoned == "outer" else one.replica
        assert went_on.applied_index == 2


def test_replica_remembers_each_decision_with_many_skipped_commands() -> None:
    known = Skips()
    first, second = b"1" * 16, b"2" * 16
    known.note(c.Skipped(first, b"first"))
    for at in range(3 * SKIPS_KEPT):
        known.note(c.Skipped(second, b"%d" % at))
    assert known.knows(first) and known.knows(second)
    assert len(known.state()) == SKIPS_KEPT and b"%d" % (3 * SKIPS_KEPT - 1) in known.digests
    for at in range(SKIPS_KEPT):
        known.note(c.Skipped(b"%16d" % at, b""))
    assert not known.knows(first) and len(known.state()) == skips.SKIPS_KEPT


class MetadataBed:
    """The metadata replica over the applier."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.sent: list[Published] = []
        self.applier = Applier(self.stores, self.sent.append)
        self.replica = MetadataReplica(self.stores, STORE)

    def run(self, log: list[bytes], skip: Skip | None = None) -> None:
        first = self.replica.applied_index
        tasks = [self.task(at, command) for at, command in enumerate(log, 1) if at > first]
        self.applier.run(tasks)
        if skip is not None:
            self.applier.run([Apply(METADATA_GROUP, self.replica, len(log) + 1, b"", True, skip)])
        self.applier.rest()

    def task(self, index: int, command: bytes) -> Apply:
        return Apply(METADATA_GROUP, self.replica, index, command, True)

    def rows(self) -> list[tuple[bytes, bytes]]:
        return self.stores.scan(store_prefix(STORE), store_prefix(STORE + 1), limit=ALL, max_bytes=ALL)


METADATA: list[m.Command] = [
    register_node("n1", "s1", {"client": "127.0.14.1:1"}, highest_level=99),
    register_node("n2", "s2", {"client": "127.0.14.2:1"}, highest_level=99),
    m.FormCluster("cluster"),
    m.RaiseFeatureLevel(FIRST_LEVEL),
    m.CreateTopic("t", "timer", 1, [["n1"], ["n1"]], {"lease_ms": 1}),
    m.UpdateTopic("t", {"lease_ms": 2}, 1, 2, [["n1"]]),
    m.MarkNode("n2", T),
    m.Assign(1, 0, ["n1", "n2"]),
    m.Settle(1, 1, True),
    m.Balance(["n1", "n2"]),
    m.SetPush("t", "g", {"url": "http://127.0.14.3"}),
    m.PutIdentity("p", True, ["read:*"], b"hash", None, {}, ""),
    m.PutRole("r", ["read:*"]),
    m.DeleteRole("r"),
    m.DeleteIdentity("p"),
    m.CreateTopic("u", "timer", 1, [["n1"]], {"lease_ms": 1}),
    m.DeleteTopic("u"),
    register_node("n3", "s3", {"client": "127.0.14.3:1"}, highest_level=99),
    m.ChangeStanding("n3", "removing"),
    m.RemoveNode("n3", "s3"),
    m.Skipped(b"a skip long ago!", b"digest of others"),
]


def test_metadata_corpus_has_every_command() -> None:
    assert {type(command) for command in METADATA} == {*m._CLASSES.values()}


@pytest.mark.parametrize("step", ["decode", "first", "last", "drain"])
@pytest.mark.parametrize("at", range(len(METADATA) - 1), ids=lambda at: f"{at}-{type(METADATA[at]).__name__}")
def test_fault_at_any_step_of_a_metadata_command_keeps_the_state_before_it(at: int, step: str) -> None:
    log = [m.Entry(T, (command,)).encode() for command in METADATA]
    apply, decode, drain = MetadataState._apply, m.Entry.decode, MetadataReplica.drain
    left = [step]

    def planted_apply(state: MetadataState, command: Any, now_ms: int, put: Any) -> Any:
        if command != METADATA[at] or step not in ("first", "last"):
            return apply(state, command, now_ms, put)
        if step == "last":
            apply(state, command, now_ms, put)
        raise MemoryError(step)

    def planted_decode(data: bytes) -> m.Entry:
        if step == "decode" and data == log[at]:
            raise MemoryError("decode")
        return decode(data)

    def planted_drain(replica: MetadataReplica) -> Any:
        if step == "drain" and left and replica.state.applied_index == at + 1:
            left.clear()
            raise MemoryError("drain")
        return drain(replica)

    one = MetadataBed()
    with (
        patch.object(MetadataState, "_apply", planted_apply),
        patch.object(m.Entry, "decode", planted_decode),
        patch.object(MetadataReplica, "drain", planted_drain),
    ):
        one.run(log[: max(at - 2, 0)])
        one.run(log[: at + 1])
        one.run(log)  # later entries are discarded, and results that were shown are still written
    failure = one.replica.failure
    assert failure is not None and failure.index == at + 1
    before = MetadataBed()
    before.run(log[:at])
    assert one.replica.state.topics == before.replica.state.topics
    assert one.rows() == before.rows()
    reference = MetadataBed()
    reference.run(log)
    one.replica = MetadataReplica(one.stores, STORE)
    command, _ = replacement_of(METADATA_GROUP, b"an operator's id", log[at], None, failure)
    skipping = MetadataBed()
    skipping.stores.write(one.rows())
    skipping.replica = MetadataReplica(skipping.stores, STORE)
    one.run(log)
    assert one.rows() == reference.rows()
    replaced = [*log[:at], command, *log[at + 1 :]]
    never_failed = MetadataBed()
    skip = Skip(at + 1, 1, b"an operator's id", command)
    never_failed.run(replaced, skip)
    assert never_failed.replica.failure is None
    for until in range(at + 1, len(log) + 1):
        skipping.run(replaced[:until])
        skipping.replica = MetadataReplica(skipping.stores, STORE)
    skipping.run(replaced, skip)
    assert skipping.rows() == never_failed.rows()


def test_results_before_a_failing_status_are_not_reported() -> None:
    """An operator may skip the named entry, so no result of this entry may be acknowledged."""
    one = bed()
    one.run_log([entry(*LEASED)])
    one.published.clear()
    own, status = one.replica, PartitionReplica.status

    def failing(replica: PartitionReplica) -> Any:
        if replica is own and replica.failure is None:
            raise KeyError("planted")
        return status(replica)

    with patch.object(PartitionReplica, "status", failing):
        one.applier.run([one.other_task(), one.task(2, entry(c.Append(batch_of(["b"]))))])
    assert [group for each in one.published for group, _, _ in each.results] == [8]
    assert own.failure is not None and own.failure.index == 2


def test_shut_replica_may_have_acknowledged_all_entries_before_the_one_that_failed() -> None:
    def reached(index: int | None, step: Step) -> int:
        return ShutReport(group=7, index=index, rows_index=3, leads=False, step=step.value, error="").reached

    assert [reached(9, Step.APPLY), reached(9, Step.DRAIN), reached(None, Step.LOAD)] == [8, 8, 3]
    assert reached(9, Step.SKIPPED) == 0, "only a snapshot opens it"
