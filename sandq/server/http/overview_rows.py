"""The overview as JSON objects, and the findings that need an operator's attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandq.client.admin import UNREACHABLE, ClusterOverview, GroupOverview, HistorySlot, Lateness, TopicOverview
from sandq.client.json_format import when
from sandq.model import health

Found = dict[str, Any]
FINDINGS_MOST: Final = 100
"""Maximum number of findings in a response."""
LIMITS: Final = {1: ["max_in_flight"], 2: ["rate"], 3: ["max_in_flight", "rate"]}


def topic_row(topic: TopicOverview, over_ms: int) -> Found:
    """Return a topic as one row. No member changes only because time passes."""
    groups = topic.groups.values()
    oldest = [group.oldest_ms for group in groups if group.oldest_ms is not None]
    over_s = max(over_ms, 1) / 1000
    return {
        "topic": topic.name,
        "kind": topic.kind,
        "partitions": topic.partitions,
        "replicas": topic.replicas,
        "without_leader": max(topic.partitions - topic.led, 0),
        "messages": topic.messages,
        "delayed": topic.delayed,
        "dead": topic.dead,
        "bytes": topic.bytes,
        "keys": topic.keys,
        "schedules": topic.schedules,
        "outbox": topic.outbox,
        "lag": topic.lag,
        "oldest_at": when(min(oldest)) if oldest else None,
        "groups": topic.group_count,
        "consumers": max([group.consumers for group in groups], default=0),
        "paused": sum(group.paused for group in groups),
        "stalled": sum(group.reason is not None for group in groups),
        "in_per_s": round(topic.stored / over_s, 1),
        "out_per_s": round(topic.sent / over_s, 1),
        "acked_per_s": round(topic.acked / over_s, 1),
        "dead_per_s": round(topic.died / over_s, 1),
        **late_fields(topic.lateness),
    }


def group_row(topic: str, group: GroupOverview) -> Found:
    """Return a group as one row."""
    return {
        "topic": topic,
        "group": group.group,
        "lag": group.lag,
        "ready": group.ready,
        "leased": group.leased,
        "waiting": group.waiting,
        "dead": group.dead,
        "consumers": group.consumers,
        "paused": group.paused,
        "reason": group.reason,
        "push": group.push,
        "push_error": group.push_error,
        "unfinished": group.unfinished,
        "held_up_by": LIMITS.get(group.held_up_by, []),
        "oldest_at": when(group.oldest_ms),
    }


def history_row(slot: HistorySlot) -> Found:
    """Return the events in one slot of the history."""
    return {
        "start": when(slot.start_ms),
        "stored": slot.stored,
        "delivered": slot.sent,
        "acked": slot.acked,
        "dead": slot.died,
        **late_fields(slot.lateness),
    }


def late_fields(lateness: Lateness) -> Found:
    """Return how late first deliveries were, in ms: the median and the 99th percentile."""
    return {f"late_p{part}_ms": _ms(lateness.quantile(part / 100)) for part in (50, 99)}


def _ms(seconds: float | None) -> float | None:
    """Return seconds as ms with one decimal; None if there are none."""
    return None if seconds is None else round(seconds * 1000, 1)


def findings(info: Mapping[str, Any], overview: ClusterOverview, topics: Iterable[TopicOverview]) -> list[Found]:
    """Return the situations that need attention (`sandq.model.health`), worst first.

    Each finding has `situation`, `state`, `what`, `found`, `todo`, and the `topic` and `group` that it is about.
    `info`: of the cluster. `topics`: topics that the caller may see."""
    found = [*health.of_nodes(info)]
    silent = {node: why for node, why in sorted(overview.missing.items()) if why != UNREACHABLE}
    found += [health.of_silent_node(node, why) for node, why in silent.items()]
    topics = list(topics)
    replicas = {topic.name: topic.replicas for topic in topics}
    found += health.of_replicas(replicas, health.replica_nodes(info))
    for topic in topics:
        if not silent:  # a node that reports nothing may lead partitions that seem to have no leader
            found += health.of_leaders(topic.name, topic.partitions - topic.led, topic.partitions)
        for group in topic.groups.values():
            found += health.of_group(_health_of(topic.name, group), overview.now_ms)
    return [
        {
            **{"situation": one.situation, "state": one.state, "what": one.what, "found": one.found, "todo": one.todo},
            **one.about,
        }
        for one in health.sorted_findings(found)[:FINDINGS_MOST]
    ]


def _health_of(topic: str, group: GroupOverview) -> health.GroupHealth:
    """Return the state of a group, as `model.health` judges it."""
    return health.GroupHealth(
        topic=topic,
        group=group.group,
        ready=group.ready,
        leased=group.leased,
        dead=group.dead,
        consumers=group.consumers,
        reason=group.reason,
        oldest_ms=group.oldest_ms,
        push=group.push,
        push_error=group.push_error,
        push_error_ms=group.push_error_ms,
        unfinished=group.unfinished,
    )
