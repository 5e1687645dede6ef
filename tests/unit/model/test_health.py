"""Tests that doctor, the overview and the document describe each situation of a cluster in the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from sandq.client.admin import ClusterOverview, GroupOverview, TopicOverview
from sandq.model.features import KNOWN
from sandq.model.health import (
    ALONE_MS,
    FAILED,
    RECENT_MS,
    SITUATIONS,
    WARNING,
    GroupHealth,
    of_group,
    of_replicas,
    why_ready,
)
from sandq.server.http.overview_rows import findings
from tests.support.documents import document
from tests.support.paths import ROOT

NOW_MS: Final = 1_900_000_000_000
PAGE: Final = document("operations")
ALERTS: Final = (ROOT / "deploy/prometheus/sandq-alerts.yml").read_text(encoding="utf-8")
NAMES: Final = {
    **{"topic": "TOPIC", "group": "GROUP", "node": "NODE", "partition": "PARTITION", "asked": "NODE", "nodes": "NODES"},
    **{"where": "PARTITION", "why": "REASON", "ready": "N", "dead": "N", "count": "N", "partitions": "M"},
    **{"kept": "N messages", "level": "LEVEL", "next": "LEVEL", "port": "PORT"},
}
NODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "node-waiting": {"waiting": "n2 is missing"},
    "node-sick": {"nodes": [{"node": "n2", "up": True, "sick": "EIO"}]},
    "node-down": {"nodes": [{"node": "n2", "up": False}]},
    "storage-failed": {"storage_failed": "EIO"},
    "disk-full": {"no_room": True},
    "damage": {"damage": "000001.ldb"},
    "clock-alarm": {"clock_alarm": True},
    "exposed": {"exposed": ["listen.client on 10.0.0.1"]},
    "feature-level": {"feature_level": KNOWN.highest, "feature_level_next": KNOWN.highest + 1},
    "http-down": {"http_down": "exit code 4"},
    "replica-shut": {"shut": [{"topic": "t", "partition": 1, "node": "n1", "error": "entry 5"}]},
    "replica-differs": {"different": [{"topic": "t", "partition": 1, "nodes": ["n2"]}]},
}
"""Examples of a node's report about the cluster, by situation."""
GROUPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "group-paused": {"reason": "it is paused until it is resumed", "ready": 5},
    "group-stalled": {"reason": "20,000 messages wait for earlier ones of their keys", "ready": 5},
    "group-expired": {"ready": 5, "unfinished": 4, "oldest_ms": NOW_MS - ALONE_MS},
    "receiver-down": {"push": "waiting", "ready": 5, "push_error": "503"},
    "receiver-unreachable": {"push": "looking", "ready": 5, "push_error": "no such name"},
    "receiver-failing": {"push": "pushing", "push_error": "500", "push_error_ms": NOW_MS - 1000},
    "push-not-started": {"push": "starting", "ready": 5},
    "no-consumers": {"ready": 5, "oldest_ms": NOW_MS - ALONE_MS},
    "dead-letters": {"dead": 2, "consumers": 1},
}
"""Examples of the known facts about a group, by situation."""
OTHERS: Final = {"node-silent", "no-leader", "few-replicas"}


def overview(
    groups: Mapping[str, GroupOverview] | None = None, *, led: int = 1, sent: int = 0, **more: Any
) -> ClusterOverview:
    topic = TopicOverview(name="t", kind="timer", partitions=1, led=led, sent=sent, groups=dict(groups or {}))
    return ClusterOverview(NOW_MS, 10_000, {"t": topic}, more.get("missing", {}))


def named(info: Mapping[str, Any], seen: ClusterOverview) -> list[str]:
    return [one["situation"] for one in findings({"node": "n1", **info}, seen, seen.topics.values())]


def test_every_situation_is_made_here() -> None:
    assert NODES.keys() | GROUPS.keys() | OTHERS == SITUATIONS.keys()


@pytest.mark.parametrize("situation", NODES)
def test_node_in_a_situation_has_its_finding_alone(situation: str) -> None:
    (found,) = findings({"node": "n1", **NODES[situation]}, overview(), ())
    expected = SITUATIONS[situation]
    assert (found["situation"], found["state"], found["what"]) == (situation, expected.state, expected.what)
    assert "{" not in found["found"] + found["todo"]


def test_leaders_and_silent_nodes_are_found() -> None:
    assert named({}, overview(led=0)) == ["no-leader"]
    assert named({}, overview(led=0, missing={"n2": "its version does not report it"})) == ["node-silent"]


def test_topics_with_few_replicas_are_named_where_more_nodes_are() -> None:
    replicas = {"t": 3, **{f"few{number}": 1 for number in range(9)}}
    (found,) = of_replicas(replicas, 4)
    assert found.situation == "few-replicas" and found.state == WARNING
    assert found.found == (
        "9 topics have fewer than 3 replicas, and 4 nodes can hold one: "
        "few0, few1, few2, few3, few4, few5, few6, few7 and 1 more"
    )
    assert list(of_replicas(replicas, 2)) == list(of_replicas({"t": 3}, 4)) == []


@pytest.mark.parametrize("situation", GROUPS)
def test_group_in_a_situation_has_its_finding_alone(situation: str) -> None:
    (found,) = of_group(GroupHealth(topic="t", group="g", **GROUPS[situation]), NOW_MS)
    expected = SITUATIONS[situation]
    assert (found.situation, found.state, found.what) == (situation, expected.state, expected.what)
    assert found.about == {"topic": "t", "group": "g"} and "g of t" in found.found
    assert "{" not in found.found + found.todo


@pytest.mark.parametrize("situation", GROUPS)
def test_overview_and_doctor_have_the_same_findings(situation: str) -> None:
    (expected,) = of_group(GroupHealth(topic="t", group="g", **GROUPS[situation]), NOW_MS)
    seen = overview({"g": GroupOverview(group="g", **GROUPS[situation])})
    (found,) = findings({"node": "n1"}, seen, seen.topics.values())
    told = (expected.situation, expected.state, expected.what, expected.found, expected.todo)
    assert tuple(found.values()) == (*told, "t", "g")


def test_overview_names_topics_with_few_replicas_where_more_nodes_are() -> None:
    nodes = [{"node": f"n{number}", "up": True, "standing": "in"} for number in range(3)]
    seen = overview()
    seen.topics["t"].replicas = 1
    assert named({"nodes": nodes}, seen) == ["few-replicas"]
    assert named({"nodes": [{**nodes[0], "standing": "draining"}, *nodes[1:]]}, seen) == []
    seen.topics["t"].replicas = 3
    assert named({"nodes": nodes}, seen) == []


@pytest.mark.parametrize("push", ["waiting", "probing", "looking", "pushing", "starting"])
def test_group_delete_is_never_advised_for_a_pushed_group(push: str) -> None:
    for error in (None, "503"):
        group = GroupHealth(
            topic="t", group="g", ready=5, push=push, push_error=error, push_error_ms=NOW_MS - 1, unfinished=3
        )
        assert not any("group delete" in one.todo for one in of_group(group, NOW_MS))
    assert not any(
        "group delete" in one.todo for name, one in SITUATIONS.items() if name not in ("no-consumers", "group-expired")
    )


def test_group_whose_limit_is_paused_is_not_advised_to_be_resumed() -> None:
    reason = "the limit llm is paused until it is resumed, by an operator"
    (found,) = of_group(GroupHealth(topic="t", group="g", ready=5, consumers=1, reason=reason), 0)
    assert found.situation == "group-stalled" and "the limit llm is paused" in found.found


def test_group_without_consumers_is_found_next_to_a_served_group() -> None:
    served = GroupOverview(group="served", ready=5, leased=3, consumers=2, oldest_ms=NOW_MS - 10 * ALONE_MS)
    alone = GroupOverview(group="alone", ready=5, oldest_ms=NOW_MS - ALONE_MS)
    seen = overview({"served": served, "alone": alone}, sent=100)
    found = findings({"node": "n1"}, seen, seen.topics.values())
    assert [(one["situation"], one["group"]) for one in found] == [("no-consumers", "alone")]


@pytest.mark.parametrize(
    "more", [{"consumers": 1}, {"leased": 1}, {"ready": 0}, {"oldest_ms": NOW_MS - ALONE_MS + 1}, {"push": "pushing"}]
)
def test_group_that_is_served_has_no_finding(more: dict[str, Any]) -> None:
    fields = {"ready": 5, "oldest_ms": NOW_MS - ALONE_MS, **more}
    assert list(of_group(GroupHealth(topic="t", group="g", **fields), NOW_MS)) == []


def test_receiver_that_failed_long_ago_has_no_finding() -> None:
    group = GroupHealth(topic="t", group="g", push="pushing", push_error="500", push_error_ms=NOW_MS - RECENT_MS)
    assert list(of_group(group, NOW_MS)) == []


def test_why_names_the_push_and_not_missing_consumers() -> None:
    assert why_ready(1, is_pushed=False) == why_ready(1, is_pushed=True) == ""
    assert "no consumer" in why_ready(0, is_pushed=False)
    assert "no consumer" not in why_ready(0, is_pushed=True)


def test_failures_come_before_warnings() -> None:
    groups = {"g": GroupOverview(group="g", dead=1)}
    assert named({"no_room": True}, overview(groups)) == ["disk-full", "dead-letters"]


def shown(template: str) -> str:
    template = template.replace("{count} have fewer than {replicas}", "N topics have fewer than 3")
    template = template.replace("{nodes} nodes can", "M nodes can").replace("{named}", "NAMES")
    return template.replace(": {why}", ": REASON").replace("{why}", "[: REASON]").format_map(NAMES)


def test_document_lists_every_situation_with_its_text() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `[a-z-]+` \|.*", PAGE, re.M)
    ]
    documented = {row[0].strip("`"): row[1:] for row in rows if row[1] in (FAILED, WARNING)}
    expected = {}
    for name, situation in SITUATIONS.items():
        alert = f"[{situation.alert}](#{situation.alert.lower()})" if situation.alert else ""
        expected[name] = [situation.state, shown(situation.found), shown(situation.todo), alert]
    assert documented == expected


def test_alerts_of_situations_exist_and_have_a_section() -> None:
    for situation in SITUATIONS.values():
        if situation.alert:
            assert f"alert: {situation.alert}\n" in ALERTS
            assert f"### {situation.alert}\n" in PAGE
