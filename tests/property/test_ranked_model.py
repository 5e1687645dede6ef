"""Partitions of priority and fair topics agree with a model about the order of messages, across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.limits import FIXED
from sandq.partition.groups import group
from sandq.partition.jobs import jobs
from sandq.partition.leasing import lease_reclaim, ranked_grants
from sandq.partition.log import appends, sweep, trim
from sandq.partition.reader import reader
from sandq.partition.ready import queue_entries, ready_queues
from tests.support.examples import examples
from tests.support.partition.ranked_sequence import DEEDS, RankedSequence
from tests.support.partition.spilling import spilling_all

SMALL = (
    (trim, "TRIM_ROWS", 3),
    (trim, "PIN_MS", 3000),
    (trim, "UNPIN_MESSAGES", 2),
    (appends, "WHOLE_MESSAGES", 2),
    (reader, "HEAD_ENTRIES", 2),
    (jobs, "STEP_MESSAGES", 2),
    (sweep, "LEAST_SETTLED", 2),
    (sweep, "SWEEP_ROWS", 3),
    (queue_entries, "HEAD_ENTRIES", 2),
    (queue_entries, "MOST_ENTRIES", 4),
    (lease_reclaim, "RECLAIMS_MOST", 1),
    (ranked_grants, "PROMOTED", 5),
    (ranked_grants, "PART_ENTRIES", 2),
)
TOPICS: dict[str, tuple[str, dict[str, Any]]] = {
    "priority": ("priority", {}),
    "priority_ttl": ("priority", {"ttls": True, "ttl": "20s"}),
    "priority_ageing": ("priority", {"ageing": "2s", "dedup_window": 0}),
    "priority_bytes": ("priority", {"cut_short": True}),
    "fair": ("fair", {}),
    "fair_weights": ("fair", {"tenants": {"a": {"weight": 3}, "a.*": {"weight": 2}}}),
    "fair_ttl": ("fair", {"ttls": True, "ageing": "1s"}),
    "priority_drop": ("priority", {"ttls": True, "ttl": "20s", "on_expiry": "drop", "budget": 1}),
    "fair_drop": ("fair", {"ttls": True, "on_expiry": "drop"}),
    "fair_few_queues": ("fair", {"few_queues": True}),
    "fair_few_gaps": ("fair", {"few_gaps": True}),
    "priority_slices": ("priority", {"budget": 1, "ttls": True}),
    "fair_slices": ("fair", {"budget": 2}),
}
STEPS = st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 1 << 16)), min_size=25, max_size=90)


@pytest.fixture(scope="module", autouse=True)
def small_steps() -> Iterator[None]:
    with ExitStack() as patches:
        for module, name, value in SMALL:
            patches.enter_context(patch.object(module, name, value))
        yield


@pytest.mark.parametrize("topic", TOPICS)
def test_ranked_partition_matches_the_model(topic: str) -> None:
    kind, options = TOPICS[topic]

    @settings(max_examples=examples(32), deadline=None)
    @given(steps=STEPS, evicts=st.one_of(st.none(), st.integers(0, 9)), looked_up=st.booleans(), spills=st.booleans())
    def run(steps: list[tuple[str, int]], evicts: int | None, looked_up: bool, spills: bool) -> None:
        with ExitStack() as patches:
            if spills:
                patches.enter_context(spilling_all())
            if looked_up:
                patches.enter_context(patch.object(sweep, "FEW_QUEUES", 0))
            if options.get("cut_short"):
                patches.enter_context(patch.object(ranked_grants, "LEASE_BYTES", 6000))
            if options.get("few_queues"):
                few = replace(FIXED, ready_queues=3)
                patches.enter_context(patch.object(ready_queues, "FIXED", few))
            if options.get("few_gaps"):
                patches.enter_context(patch.object(group, "FIXED", replace(FIXED, max_gaps=2)))
            walk = RankedSequence(kind, **options)
            walk.evict_from = None if evicts is None else Random(evicts)
            for deed, seed in steps:
                walk.do(deed, seed)
            walk.drain()

    run()
