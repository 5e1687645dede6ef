"""Tests of `sandctl cluster plan`: the resources for a load."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sandctl.capacity import BUDGET_BYTES, GIB, LOG_BYTES, NODE_BYTES, Load, Machine, plan

SMALL = Machine(cores=2, memory_bytes=4 * GIB, disk_bytes=100 * GIB)
LOAD = Load(rate=1000, message_bytes=200, delay_s=3600, kept_s=0)


def test_a_small_load_takes_as_many_nodes_as_it_has_replicas() -> None:
    found = plan(LOAD, SMALL)
    assert (found.nodes, found.limited_by, found.pending, found.stored) == (3, "replicas", 3_600_000, 3_600_000)
    assert found.disk_bytes > LOG_BYTES + 3_600_000 * 200 and found.memory_bytes > NODE_BYTES + BUDGET_BYTES
    assert 0 < found.cores < 0.1 and found.partitions == 3
    assert plan(replace(LOAD, replicas=1), SMALL).nodes == 1


@pytest.mark.parametrize(
    ("load", "limited_by"),
    [
        (replace(LOAD, rate=500_000, delay_s=0), "CPU"),
        (replace(LOAD, delay_s=30 * 86_400, rate=500), "disk"),
        (replace(LOAD, rate=2000, delay_s=86_400, message_bytes=1), "memory"),
    ],
)
def test_plan_names_the_limiting_resource(load: Load, limited_by: str) -> None:
    found = plan(load, SMALL)
    assert found.limited_by == limited_by and found.nodes > 3
    more = plan(replace(load, rate=2 * load.rate), SMALL)
    assert more.nodes > found.nodes and more.cores == pytest.approx(2 * found.cores)
    assert found.disk_bytes <= 0.7 * SMALL.disk_bytes and found.memory_bytes <= SMALL.memory_bytes


def test_retained_messages_are_stored_but_not_pending() -> None:
    found = plan(replace(LOAD, kept_s=7200), SMALL)
    assert (found.pending, found.stored) == (3_600_000, 10_800_000)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (replace(LOAD, replicas=1), "unavailable until it returns"),
        (replace(LOAD, replicas=2), "use 1 or 3"),
        (replace(LOAD, produced="awaited"), "send several at once"),
        (replace(LOAD, delivered="awaited"), "client.run"),
        (replace(LOAD, kept_s=90 * 86_400), "archive"),
    ],
)
def test_plan_has_remarks(load: Load, words: str) -> None:
    assert any(words in remark for remark in plan(load, replace(SMALL, disk_bytes=10_000 * GIB)).remarks)


def test_plan_command_prints_table_and_json(ctl: Any) -> None:
    result = ctl("cluster", "plan", "--rate", "1000", "--size", "200", "--delay", "1h")
    assert result.exit_code == 0 and result.output.startswith("nodes        3 (decided by replicas)\n"), result
    assert "pending      3,600,000 messages; 3,600,000 stored in all" in result.output
    told = json.loads(ctl("cluster", "plan", "--rate", "1000", "--delay", "1h", "-o", "json").output)
    assert told["nodes"] == 3 and told["limited_by"] == "replicas"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--rate", "0"), "is not a rate"),
        (("--rate", "5", "--size", "big"), "is not a size"),
        (("--rate", "5", "--peak", "0.5"), "peak: 0.5 is less than 1"),
        (("--rate", "5", "--peak", "nan"), "peak: nan is less than 1"),
        (("--rate", "5", "--peak", "inf"), "peak: more than 1e+18 cannot be computed"),
        (("--rate", "5", "--peak", "1e308"), "peak: more than 1e+18"),
        (("--rate", "5", "--groups", "9" * 400), "groups: more than 1e+18"),
        (("--rate", "5", "--disk", "999999999999999TiB"), "disk: more than 1e+18"),
        (("--rate", "5", "--replicas", "0"), "replicas: 0 is less than 1"),
        (("--rate", "5", "--memory", "1GiB"), "MiB of memory without any message"),
        (("--rate", "5", "--disk", "100MiB"), "MiB of disk for its log alone"),
        ((), "--rate"),
    ],
)
def test_invalid_plan_arguments_are_refused(ctl: Any, args: tuple[str, ...], words: str) -> None:
    result = ctl("cluster", "plan", *args)
    assert result.exit_code == 2 and words in " ".join(result.stderr.split()), result.stderr
