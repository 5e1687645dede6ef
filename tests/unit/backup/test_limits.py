"""Tests of the named limits that a restore sets."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.backup.limits import defined_limits, plan_limits
from sandq.backup.manifest import TopicPart
from sandq.model.errors import InvalidRequest, NotFound, SandqError
from sandq.model.group_limits import GROUP_LIMITS, parse_limit, with_limit
from sandq.model.limits import FIXED
from sandq.model.names import LIMITS_TOPIC, TIMER
from sandq.model.settings import parse_settings


def topic(name: str, limits: dict[str, dict[str, Any]]) -> TopicPart:
    """Return a topic of a backup whose groups, or named limits, have these limits."""
    record: dict[str, Any] = parse_settings({}, TIMER).record()
    for group, limit in limits.items():
        record = with_limit(record, group, 0 if name == LIMITS_TOPIC else 1, parse_limit(limit))
    return TopicPart(name, 1, TIMER, 1, 1, record, None, ())


def defined(**limits: dict[str, Any]) -> TopicPart:
    return topic(LIMITS_TOPIC, limits)


LLM = {"rate": "90000/m", "unit": "tokens"}
USER = topic("chat", {"g": {"limit": "llm"}})
BACKUP = defined_limits([USER, defined(llm=LLM, mail={"max_in_flight": 5})])


def test_restore_of_a_topic_sets_only_the_limits_that_it_uses() -> None:
    assert set(plan_limits([USER], BACKUP, None, all_limits=False).new) == {"llm"}
    assert set(plan_limits([USER], BACKUP, None, all_limits=True).new) == {"llm", "mail"}
    assert not plan_limits([topic("t", {})], BACKUP, None, all_limits=False).new


def test_limit_of_the_cluster_stays_with_a_warning_if_it_differs() -> None:
    same = plan_limits([USER], BACKUP, defined(llm=LLM).settings, all_limits=False)
    assert (same.new, same.warnings) == ({}, [])
    other = plan_limits([USER], BACKUP, defined(llm={"rate": "10/m"}).settings, all_limits=False)
    assert not other.new and "limit llm is different in the backup" in other.warnings[0]


def test_undefined_limit_is_refused() -> None:
    with pytest.raises(NotFound, match="sandctl limit set llm"):
        plan_limits([USER], {}, None, all_limits=False)
    assert not plan_limits([USER], {}, defined(llm=LLM).settings, all_limits=False).new


def test_more_limits_than_a_cluster_may_have_are_refused() -> None:
    there = defined(**{f"l{n}": {"max_in_flight": 1} for n in range(FIXED.named_limits - 1)}).settings
    assert set(plan_limits([USER], BACKUP, there, all_limits=False).new) == {"llm"}
    with pytest.raises(InvalidRequest, match="named_limits"):
        plan_limits([USER], BACKUP, there, all_limits=True)


@pytest.mark.parametrize("row", [7, [1], [1, {"llm": []}], [1, {"llm": [1, 0, "x", None, None, None]}], [1, {7: 8}]])
def test_damaged_definition_is_refused(row: Any) -> None:
    part = defined()
    part.settings[GROUP_LIMITS] = row
    with pytest.raises(SandqError):
        defined_limits([part])
