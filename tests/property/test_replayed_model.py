"""Whatever a partition has been through: its entries, applied to the rows that it had at any moment before, make the
rows that it had at each moment after."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from sandq.backup import replay
from sandq.backup.chain import OF_MANIFEST, Topic, Window
from sandq.backup.manifest import PartitionPart
from sandq.backup.replay import PartitionReplay, Wanted
from sandq.model.names import TIMER
from sandq.partition import commands as c
from sandq.partition.digest import comparable
from sandq.partition.log.look_aheads import LookAheads
from sandq.partition.restore.restoring import encode_chunk
from sandq.storage.stores import MemoryStores
from tests.property.test_partition_model import TOPICS, Walk
from tests.support.examples import examples
from tests.support.partition.bench import T
from tests.support.partition.restore_bench import rows_of

STORE = 3


class RowBlocks:
    """Takes what would be the files of a backup."""

    parts: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.flat: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.flat += replay.msgpack.unpackb(data)

    def end(self) -> None:
        pass

    give_up = end

    @property
    def rows(self) -> Any:
        return comparable(zip(self.flat[::2], self.flat[1::2], strict=True))


def replayed(flat: list[bytes], base: int, entries: list[tuple[int, bytes]], until_ms: int | None) -> Any:
    """The rows of a partition that is made of these rows, and the entries behind them up to then."""
    topic = Topic("t", 1, TIMER, 1, 1, 1, {}, None, 0)
    wanted = Wanted(topic, Window(1, 0, OF_MANIFEST, base, 0, base, None, 0), PartitionPart(0, base, 0, 1, ()))
    made = PartitionReplay(MemoryStores(), STORE, wanted, LookAheads())
    made.put_rows(encode_chunk(flat))
    made.load()
    for index, command in entries:
        made.apply(index, 1, command, until_ms)
    files: Any = RowBlocks()
    part = made.end(files)
    return part.index, part.time_ms, files.rows


class Replaying(Walk):
    """At its end it is made again, from several moments to several others."""

    @initialize(seed=st.integers(0, 1 << 30))
    def record(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.recorded: list[tuple[int, int, bytes, list[bytes], bool]] = []
        """Of each entry: index, stamp, itself, all rows after it, and whether the clock was being set back then."""
        self.recording = False

    def apply(self, command: c.Command) -> Any:
        if not getattr(self, "recording", True):
            self.recording, bench = True, self.bench
            apply = bench.apply

            def recorded(at: int, *commands: c.Command) -> list[Any]:
                results = apply(at, *commands)
                flat = [part for row in rows_of(bench) for part in row]
                is_reset = bench.machine.resets.state is not None
                self.recorded.append((bench.index, T + at, c.Entry(T + at, commands).encode(), flat, is_reset))
                return results

            bench.apply = recorded  # type: ignore[method-assign]
        return super().apply(command)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            if hasattr(self, "recorded") and self.recorded:
                self._replayed()
        finally:
            self.patches.close()

    def _replayed(self) -> None:
        recorded = self.recorded
        for _ in range(4):
            base = self.random.randrange(len(recorded))
            index, _, _, flat, _ = recorded[base]
            until_ms = self.random.choice([None, *[stamp + off for _, stamp, *_ in recorded[base:] for off in (0, 1)]])
            last = base
            for at in range(base + 1, len(recorded)):
                if until_ms is not None and recorded[at][1] > until_ms:
                    break
                last = at
            if recorded[last][4]:
                continue  # no backup is made of such a moment
            entries = [(number, command) for number, _, command, *_ in recorded]  # also those that the rows have
            made = replayed(flat, index, entries, until_ms)
            expected = recorded[last][3]
            rows = comparable(zip(expected[::2], expected[1::2], strict=True))
            assert made[0] == recorded[last][0], (base, until_ms)
            assert made[2] == rows, {key for key in rows.keys() | made[2].keys() if rows.get(key) != made[2].get(key)}


def walk(topic: dict[str, Any], tries: int) -> None:
    kind: Any = type("Replaying", (Replaying,), {"topic": topic})
    phases = [Phase.generate]
    run_state_machine_as_test(
        kind, settings=settings(max_examples=tries, stateful_step_count=40, deadline=None, phases=phases)
    )


@pytest.mark.parametrize("topic", ["plain", "keys_ttl", "per_key_ttl", "retain"])
def test_replayed_rows_are_those_that_a_replica_had(topic: str) -> None:
    walk(TOPICS[topic], examples(9))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", TOPICS)
def test_replayed_rows_are_those_that_a_replica_had_for_long(topic: str) -> None:
    walk(TOPICS[topic], 200)
