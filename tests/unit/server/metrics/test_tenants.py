"""Tests of the number of tenants with samples: the tenants with most ready messages, limited per group and in total."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from sandq.server.metrics import catalog
from sandq.server.metrics.text import Exposition
from sandq.server.metrics.topics import TENANTS, write_tenants

Row = tuple[str, dict[str, Any]]
READY = re.compile(r'^sandq_tenant_ready{topic="(.*)",group="(.*)",tenant="(.*)"} (.*)$', re.M)


def rows_of(group: str, count: int, first: int = 0) -> list[Row]:
    """Return tenants t<n> with n ready messages, in any order."""
    rows = [(group, {"tenant": f"t{n}", "ready": n, "in_flight": 1}) for n in range(first, first + count)]
    Random(count).shuffle(rows)
    return rows


def samples_of(
    topics: list[tuple[str, list[Row]]], labelled: set[tuple[str, str]], limit: int
) -> list[tuple[str, ...]]:
    """Return the samples of tenants, as the metrics show them."""
    exposition = Exposition(catalog.EVERY, openmetrics=False)
    write_tenants(topics, labelled, limit, exposition)
    text = exposition.text(b"").decode()
    found = READY.findall(text)
    assert text.count("sandq_tenant_in_flight{") == len(found)
    return found


def test_tenants_with_the_most_ready_messages_have_samples() -> None:
    found = samples_of([("f", rows_of("g", 3 * TENANTS))], {("f", "g")}, 10_000)
    assert [int(ready) for *_, ready in found] == list(range(3 * TENANTS - 1, 2 * TENANTS - 1, -1))


def test_groups_together_are_limited() -> None:
    topics = [(f"f{n}", rows_of("g", TENANTS) + rows_of("h", TENANTS)) for n in range(20)]
    labelled = {(topic, group) for topic, _ in topics for group in "gh"}
    assert len(samples_of(topics, labelled, 10_000)) == 40 * TENANTS
    assert len(samples_of(topics, labelled, 250)) == 250
    assert samples_of(topics, labelled, 0) == []


def test_a_group_without_a_label_has_none() -> None:
    found = samples_of([("f", rows_of("g", 2) + rows_of("h", 2))], {("f", "h")}, 10)
    assert {group for _, group, *_ in found} == {"h"}
    assert len(found) == 2
