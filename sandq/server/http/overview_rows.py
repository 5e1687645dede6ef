"""The overview as objects of JSON, and what in it needs somebody to look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sandq.client.admin import UNREACHABLE, ClusterOverview, GroupOverview, HistorySlot, Lateness, TopicOverview
from sandq.client.json_format import when

Found = dict[str, Any]
FINDINGS_MOST: Final = 100
LIMITS: Final = {1: ["max_in_flight"], 2: ["rate"], 3: ["max_in_flight", "rate"]}


def topic_row(topic: TopicOverview, over_ms: int) -> Found:
    """A topic in one row. It says nothing that changes by time alone."""
    groups = topic.groups.values()
    oldest = [group.oldest_ms for group in groups if group.oldest_ms is not None]
    over_s = max(over_ms, 1) / 1000
    return {
        "topic": topic.name,
        "kind": topic.kind,
        "partitions": topic.partitions,
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
    """A group in one row."""
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
        "held_up_by": LIMITS.get(group.held_up_by, []),
        "oldest_at": when(group.oldest_ms),
    }


def history_row(slot: HistorySlot) -> Found:
    """What became of messages in one slot of time."""
    return {
        "start": when(slot.start_ms),
        "stored": slot.stored,
        "delivered": slot.sent,
        "acked": slot.acked,
        "dead": slot.died,
        **late_fields(slot.lateness),
    }


def late_fields(lateness: Lateness) -> Found:
    """How late first deliveries were: half of them, and all but one in a hundred, at most."""
    return {f"late_p{part}_ms": _ms(lateness.quantile(part / 100)) for part in (50, 99)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def findings(info: Mapping[str, Any], overview: ClusterOverview, topics: Iterable[TopicOverview]) -> list[Found]:
    """Return what needs somebody to look, the worst first: `state`, `what`, `found`, `todo`, and the `topic` and
    `group` that it is about. `info`: of the cluster; `topics`: those that may be told."""
    found = [
        *_of_nodes(info),
        *_of_what_is_missing(overview.missing),
        *_of_topics(topics, _is_silent(overview.missing)),
    ]
    found.sort(key=lambda one: one["state"] != "failed")  # stable
    return found[:FINDINGS_MOST]


def _finding(state: str, what: str, found: str, todo: str, **about: str) -> Found:
    return {"state": state, "what": what, "found": found, "todo": todo, **about}


def _of_nodes(info: Mapping[str, Any]) -> Iterator[Found]:
    name = info.get("node")
    if info.get("waiting"):
        todo = "start the others, or found it: sandctl cluster init"
        yield _finding("failed", "nodes", f"{name} belongs to no cluster yet: {info['waiting']}", todo)
    for row in info.get("nodes") or ():
        node = row.get("node")
        if row.get("sick"):
            yield _finding("failed", "nodes", f"{node} is sick: {row['sick']}", "see to its disk, or replace it")
        elif not row.get("up"):
            todo = f"start it; if it does not come back: sandctl cluster remove {node}"
            yield _finding("failed", "nodes", f"{node} cannot be reached by {name}", todo)
    for key, said, todo in (
        ("storage_failed", "its storage failed", "see to its disk, and start it again"),
        ("no_room", "its disk is nearly full", "make room on its disk"),
        ("damage", "its log or tables are damaged", "see docs/operations.md, When the disk is full or fails"),
        ("clock_alarm", "its clock is in alarm", "set its clock right: sandctl cluster clock"),
    ):
        if info.get(key):
            more = "" if info[key] is True else f": {info[key]}"
            yield _finding("failed", "nodes", f"{name}: {said}{more}", todo)
    for port in info.get("exposed") or ():
        yield _finding("warning", "security", f"{name} is open to anybody: {port}", "see docs/security.md")
    for one in info.get("shut") or ():
        where = f"partition {one['partition']} of {one['topic']}" if one["topic"] else "the metadata"
        what = f"the replica of {where} at {one['node']} is shut: {one['error']}"
        about = {"topic": one["topic"]} if one["topic"] else {}
        yield _finding("failed", "replicas", what, "sandctl partition shut", **about)
    for one in info.get("different") or ():
        where = f"partition {one['partition']} of {one['topic']} at {', '.join(one['nodes'])}"
        todo = f"sandctl cluster rebuild {one['topic']} {one['partition']} NODE"
        yield _finding("failed", "replicas", f"{where} is not what the others are", todo, topic=one["topic"])


def _of_what_is_missing(missing: Mapping[str, str]) -> Iterator[Found]:
    for node, why in sorted(missing.items()):
        if why != UNREACHABLE:
            yield _finding("warning", "nodes", f"{node} tells nothing of its topics: {why}", "ask again in a moment")


def _is_silent(missing: Mapping[str, str]) -> bool:
    """Whether nodes that are there tell nothing: some may lead what nobody seems to lead."""
    return any(why != UNREACHABLE for why in missing.values())


def _of_topics(topics: Iterable[TopicOverview], is_silent: bool) -> Iterator[Found]:
    for topic in topics:
        name = topic.name
        if (unled := topic.partitions - topic.led) > 0 and not is_silent:
            what = f"{unled} of {topic.partitions} partitions of {name} have no leader"
            yield _finding("failed", "partitions", what, f"sandctl cluster partitions --topic {name}", topic=name)
        for group in topic.groups.values():
            about = {"topic": name, "group": group.group}
            if group.reason is not None:
                todo = f"sandctl group show {name} {group.group}"
                if group.paused:
                    todo += f"; sandctl group resume {name} {group.group}"
                yield _finding(
                    "warning", "groups", f"{group.group} of {name} gets nothing: {group.reason}", todo, **about
                )
            elif group.ready and not group.consumers and not topic.sent:
                what = f"{group.group} of {name}: {group.ready:,} ready, and no consumer is connected"
                todo = f"start its consumers; if nobody needs it: sandctl group delete {name} {group.group}"
                yield _finding("warning", "groups", what, todo, **about)
            if group.dead:
                what = f"{group.group} of {name}: {group.dead:,} dead letters"
                yield _finding("warning", "dead letters", what, f"sandctl dead list {name} -g {group.group}", **about)
