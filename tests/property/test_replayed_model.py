"""Entries that are replayed on the rows of any earlier moment give the rows of each later moment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from sandq.partition import commands as c
from tests.property import test_compacted_model as compacted
from tests.property.test_partition_model import TOPICS, Walk
from tests.support.examples import examples, seeds
from tests.support.partition import ranked_sequence, schedule_sequence
from tests.support.partition.ranked_sequence import RankedSequence
from tests.support.partition.replay_bench import Recorder
from tests.support.partition.schedule_sequence import ScheduleSequence

TRIES = 4
"""Number of replays. Each goes from one random moment to a later one."""


class Replaying:
    """A random walk that records the entries of its first partition, and replays them at its end."""

    bench: Any

    @initialize(seed=st.integers(0, 1 << 30))
    def record(self, seed: int) -> None:
        self.random = Random(seed)
        self.recorder: Recorder | None = None

    def apply(self, command: c.Command) -> Any:
        if getattr(self, "recorder", self) is None:
            self.recorder = Recorder(self.bench)
        return super().apply(command)  # type: ignore[misc]

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            if getattr(self, "recorder", None) is not None:
                self.recorder.check(self.random, TRIES)  # type: ignore[union-attr]
        finally:
            self.patches.close()  # type: ignore[attr-defined]


class OfMessages(Replaying, Walk):
    pass


class OfKeys(Replaying, compacted.Walk):
    pass


def walk(kind: type[Any], topic: dict[str, Any], tries: int) -> None:
    made: Any = type("Replayed", (kind,), {"topic": topic})
    steps = settings(max_examples=tries, stateful_step_count=40, deadline=None, phases=[Phase.generate])
    run_state_machine_as_test(made, settings=steps)


@pytest.mark.parametrize("topic", ["plain", "keys_ttl", "per_key_ttl", "retain"])
def test_replayed_rows_match_the_replica(topic: str) -> None:
    walk(OfMessages, TOPICS[topic], examples(9))


@pytest.mark.parametrize("topic", compacted.TOPICS)
def test_replayed_keys_match_the_replica(topic: str) -> None:
    walk(OfKeys, compacted.TOPICS[topic], examples(9))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", TOPICS)
def test_long_run_of_replayed_rows_matches_the_replica(topic: str) -> None:
    walk(OfMessages, TOPICS[topic], 200)


RANKED: dict[str, Callable[[], RankedSequence]] = {
    "priority": lambda: RankedSequence("priority", ttls=True),
    "fair": lambda: RankedSequence("fair", cut_short=True),
}


@pytest.mark.parametrize("seed", seeds(2, 30))
@pytest.mark.parametrize("kind", RANKED)
def test_replayed_ranks_match_the_replica(kind: str, seed: int) -> None:
    random, going = Random(seed), RANKED[kind]()
    recorder = Recorder(going.bench)
    for _ in range(60):
        going.do(random.choice(ranked_sequence.DEEDS), random.randrange(1 << 16))
    assert recorder.check(random, 2 * TRIES) > 0, seed


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_replayed_schedules_match_the_replica(seed: int) -> None:
    random, going = Random(seed), ScheduleSequence()
    recorder = Recorder(going.bench)
    for _ in range(80):
        going.do(random.choice(schedule_sequence.DEEDS), random.randrange(1 << 16))
    recorder.check(random, 2 * TRIES)
    assert len(recorder.recorded) > 40, seed
