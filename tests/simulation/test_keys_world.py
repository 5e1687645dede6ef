"""Keys of a compacted topic on three nodes stay linearizable under all faults.

For each key, one order of all operations explains the answers to clients. In the end all replicas hold exactly the last
written values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.producers.producers import Producers
from sandq.raft import Group
from tests.support.simulation.keys_world import KeysWorld
from tests.support.simulation.linearizable import NotLinearizable, Operation
from tests.support.simulation.seeds import few_of, run_each
from tests.support.simulation.stepped import VirtualClock

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 1000
"""Number of steps before healing: 14 seconds of virtual time."""
SEEDS = 24


def run_world(seed: int, steps: int = STEPS) -> KeysWorld:
    world = KeysWorld(seed)
    try:
        world.live(steps)
        world.heal()
    finally:
        world.close()
    return world


def operations_of(world: KeysWorld) -> list[Operation]:
    return [operation for history in world.clients.histories.values() for operation in history]


@pytest.mark.parametrize("block", few_of((0, 1, 2), 1))
def test_worlds(block: int) -> None:
    worlds = run_each(run_world, range(block * SEEDS // 3, (block + 1) * SEEDS // 3))
    for what, least in (("crashes", 20), ("snapshots", 0), ("elections", 20), ("compared", 100), ("led_twice", 50)):
        assert sum(getattr(world, what) for world in worlds) > least, f"too few events: {what}"
    operations = [operation for world in worlds for operation in operations_of(world)]
    swaps = [op for op in operations if op.kind == "cas" and op.answered is not None]
    for least, found in (
        (800, [op for op in operations if op.kind == "get"]),
        (200, [op for op in swaps if op.refused]),
        (100, [op for op in swaps if not op.refused]),
        (60, [op for op in swaps if not op.refused and op.expected]),
        (100, [op for op in operations if op.kind == "delete" and op.answered is not None]),
        (100, [op for op in operations if op.answered is None]),
    ):
        assert len(found) > least, f"too few operations: {found[:1]}"
    assert sum(world.clients.resent for world in worlds) > 50
    assert sum(world.replayed.compactor.forgotten > offsets.FIRST for world in worlds) > len(worlds) // 2


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_worlds(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))


def test_a_seed_replays() -> None:
    first, second = run_world(3), run_world(3)
    assert [str(op) for op in operations_of(first)] == [str(op) for op in operations_of(second)]
    assert first.clock.ms == second.clock.ms


# -- planted faults --------------------------------------------------------------------------------------------------


def reads_ask_nobody(patch: pytest.MonkeyPatch) -> None:
    """Let the leader answer without a confirmation by a majority, although another node may lead by now."""

    def begin_read(host: RaftGroup) -> None:
        host.check_ready()

    patch.setattr(RaftGroup, "begin_read", begin_read)


def leads_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a new leader answer before it knows all entries that earlier leaders acknowledged."""
    patch.setattr(Group, "term_start", property(lambda group: 0))


def conditions_are_for_nothing(patch: pytest.MonkeyPatch) -> None:
    def parse(cls: type[c.Append], fields: Any) -> c.Append:
        return cls(*fields[:5])  # without the field that says that messages have expected versions

    patch.setattr(c.Append, "parse", classmethod(parse))


def values_end_by_the_readers_clock(patch: pytest.MonkeyPatch) -> None:
    """Let values expire by the reader's clock. A read then finds no value, but a cas in flight still finds it."""
    values = PartitionReplica.values

    def by_clock(replica: PartitionReplica, keys: Sequence[bytes], max_bytes: int) -> list[bytes | None]:
        return values(replica, keys, max_bytes, now_ms=clocks[0].ms)

    clocks: list[VirtualClock] = []
    begin = KeysWorld.__init__

    def init(world: KeysWorld, seed: int) -> None:
        begin(world, seed)
        clocks[:] = [world.clock]

    patch.setattr(PartitionReplica, "values", by_clock)
    patch.setattr(KeysWorld, "__init__", init)


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        (values_end_by_the_readers_clock, 240),
        (reads_ask_nobody, 0),
        (leads_at_once, 9),
        (conditions_are_for_nothing, 0),
    ],
)
def test_not_linearizable_histories_are_found(fault: Fault, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(NotLinearizable):
        run_each(run_world, range(seed, seed + 40))


def test_a_batch_that_is_stored_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "answered", lambda *args: None)
    with pytest.raises(AssertionError, match=r"has another answer|stored twice"):
        run_each(run_world, range(1, 41))
