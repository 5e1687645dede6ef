"""The situations of a cluster that need attention, and how each is judged.

`sandctl doctor`, the console's overview and `why` use the same functions, so that they never disagree. `SITUATIONS` is
the table of docs/operations/alerts.md (What needs attention): a test compares both, and makes each situation once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

DEFAULT_REPLICAS: Final = 3
"""Number of replicas of a topic that is created without a number, if there are enough nodes. With two replicas, the
loss of one stops the partition."""
TOPICS_NAMED: Final = 8
"""Maximum number of topics that a finding names."""
ERROR_CHARS: Final = 200
"""Maximum number of characters of a receiver's error that a finding shows."""
FAILED: Final = "failed"
WARNING: Final = "warning"
ALONE_MS: Final = 60_000
"""A group without consumers needs attention once its oldest ready message has waited this long, in ms.

Consumers that ask over HTTP are not connected between two requests. A group that such consumers serve is not this far
behind, or has leased messages.
"""
RECENT_MS: Final = 5 * 60_000
"""Time in ms for which a receiver that failed is reported, even if it accepts other messages."""
PUSH_WAITING: Final = "waiting"
PUSH_PROBING: Final = "probing"
PUSH_LOOKING: Final = "looking"
PUSH_STARTING: Final = "starting"
"""State of a group that no node pushes yet."""
PUSH_STATES: Final = (PUSH_WAITING, PUSH_PROBING, PUSH_LOOKING, "pushing", PUSH_STARTING)
"""States of a pushed group on a node. The state of the group is the first state in this order that a node has."""


class Situation(NamedTuple):
    """A kind of finding: its severity, what it concerns, and its texts. `alert`: name of the Prometheus alert."""

    state: str
    what: str
    found: str
    todo: str
    alert: str = ""


SITUATIONS: Final[Mapping[str, Situation]] = {
    "node-waiting": Situation(
        FAILED,
        "nodes",
        "{node} belongs to no cluster yet: {why}",
        "start the other nodes, or create the cluster: sandctl cluster init",
    ),
    "node-sick": Situation(
        FAILED, "nodes", "{node} is sick: {why}", "check its disk, or replace the node", "SandqNodeSick"
    ),
    "node-down": Situation(
        FAILED,
        "nodes",
        "{node} cannot be reached by {asked}",
        "start it; if it does not return: sandctl cluster remove {node}",
        "SandqDown",
    ),
    "node-silent": Situation(WARNING, "nodes", "{node} does not report its topics: {why}", "ask again in a moment"),
    "storage-failed": Situation(
        FAILED, "nodes", "{node}: its storage failed{why}", "check its disk, and start it again", "SandqDiskFailed"
    ),
    "disk-full": Situation(
        FAILED,
        "nodes",
        "{node}: its disk is nearly full{why}",
        "free space on its disk (docs/operations/failures.md)",
        "SandqDiskFull",
    ),
    "http-down": Situation(
        FAILED, "nodes", "{node}: HTTP is not served{why}", "see its log; it is tried again every few seconds"
    ),
    "damage": Situation(
        FAILED,
        "nodes",
        "{node}: its log or tables are damaged{why}",
        "see docs/operations/failures.md",
        "SandqDiskFailed",
    ),
    "clock-alarm": Situation(
        FAILED, "nodes", "{node}: its clock is in alarm{why}", "set its clock: sandctl cluster clock", "SandqClockAlarm"
    ),
    "exposed": Situation(WARNING, "security", "{node} is not protected: {port}", "see docs/security.md"),
    "feature-level": Situation(
        WARNING,
        "nodes",
        "all nodes support feature level {next}, and the cluster is at {level}",
        "once you will not return to the previous version: sandctl cluster finalize",
    ),
    "replica-shut": Situation(
        FAILED,
        "replicas",
        "the replica of {where} at {node} is shut: {why}",
        "sandctl partition shut (docs/operations/failures.md, Shut partitions)",
        "SandqPartitionShut",
    ),
    "replica-differs": Situation(
        FAILED,
        "replicas",
        "the replica of {where} at {nodes} differs from the others",
        "sandctl cluster rebuild {topic} {partition} NODE (docs/operations/failures.md)",
        "SandqReplicasDiffer",
    ),
    "no-leader": Situation(
        FAILED,
        "partitions",
        "{count} of {partitions} partitions of {topic} have no leader",
        "see which nodes hold them: sandctl cluster partitions --topic {topic}",
        "SandqNoLeader",
    ),
    "few-replicas": Situation(
        WARNING,
        "topics",
        "{count} have fewer than {replicas} replicas, and {nodes} nodes can hold one: {named}",
        "sandctl topic raise-replicas --all, or name those that need more",
    ),
    "group-paused": Situation(
        WARNING,
        "groups",
        "{group} of {topic} is paused: it gets no new messages",
        "sandctl group resume {topic} {group}",
        "SandqGroupStalled",
    ),
    "group-stalled": Situation(
        WARNING,
        "groups",
        "{group} of {topic} gets no new messages: {why}",
        "see its messages that wait: sandctl group show {topic} {group}",
        "SandqGroupStalled",
    ),
    "group-expired": Situation(
        WARNING,
        "groups",
        "{group} of {topic} has expired (group_ttl): it keeps {kept} to finish, and gets no others",
        "start its consumers; if these messages are not needed: sandctl group delete {topic} {group} --force",
    ),
    "receiver-down": Situation(
        FAILED,
        "pushes",
        "{group} of {topic}: its receiver fails every request{why}",
        "repair the receiver: it is tried again within a minute, and messages wait without using attempts; "
        "sandctl group push show {topic} {group}",
        "SandqReceiverFails",
    ),
    "receiver-unreachable": Situation(
        FAILED,
        "pushes",
        "{group} of {topic}: its receiver cannot be reached{why}",
        "correct the URL (sandctl group push set), or allow it (push.allow of the nodes); "
        "sandctl group push show {topic} {group}",
        "SandqGroupBehind",
    ),
    "receiver-failing": Situation(
        WARNING,
        "pushes",
        "{group} of {topic}: its receiver failed in the last minutes{why}",
        "see its responses: sandctl group push show {topic} {group}; sandctl dead list {topic} -g {group}",
    ),
    "push-not-started": Situation(
        WARNING,
        "pushes",
        "{group} of {topic}: {ready} ready, and no node pushes it yet",
        "see which nodes lead its partitions: sandctl group push show {topic} {group}",
        "SandqGroupBehind",
    ),
    "no-consumers": Situation(
        WARNING,
        "groups",
        "{group} of {topic}: {ready} ready, and no consumer is connected",
        "start its consumers; if the group is not needed: sandctl group delete {topic} {group}",
        "SandqGroupAlone",
    ),
    "dead-letters": Situation(
        WARNING,
        "dead letters",
        "{group} of {topic}: {dead} dead letters",
        "see their errors: sandctl dead list {topic} -g {group}",
        "SandqDeadLetters",
    ),
}
"""All situations, by name. Names in braces are replaced by the names of the topic, the node and so on."""


class Finding(NamedTuple):
    """A situation that was found. `about`: the topic and the group, if it concerns one."""

    situation: str
    state: str
    what: str
    found: str
    todo: str
    about: Mapping[str, str]


class PushState(NamedTuple):
    """State of a group's push on one node: one of `PUSH_STATES`, and the last error of its receiver."""

    push: str
    error: str | None = None
    error_ms: int | None = None


PAUSED_LIMIT: Final = "the limit "
"""Beginning of the reason of a group whose named limit is paused. The group itself is not, so it cannot be resumed."""


@dataclass(frozen=True, kw_only=True)
class GroupHealth:
    """The known state of a group of a topic, across all partitions."""

    topic: str
    group: str
    ready: int = 0
    leased: int = 0
    dead: int = 0
    consumers: int = 0
    """Number of connected consumers."""
    reason: str | None = None
    """Why the group gets no new messages. None if it gets new messages."""
    oldest_ms: int | None = None
    """Time at which its oldest message that is not acked became due; None: unknown."""
    push: str | None = None
    """State of its push, one of `PUSH_STATES`; None: the group is not pushed."""
    push_error: str | None = None
    push_error_ms: int | None = None
    unfinished: int | None = None
    """Number of messages that an expired group (`group_ttl`) keeps. None if the group is not known to have expired."""


def of_group(group: GroupHealth, now_ms: int) -> Iterator[Finding]:
    """Yield the findings about a group."""
    names: dict[str, Any] = {"topic": group.topic, "group": group.group}
    error = f": {group.push_error}" if group.push_error else ""
    if group.reason is not None:
        is_paused = "paused" in group.reason and not group.reason.startswith(PAUSED_LIMIT)
        yield _finding("group-paused" if is_paused else "group-stalled", names, why=group.reason)
    if group.push in (PUSH_WAITING, PUSH_PROBING):
        yield _finding("receiver-down", names, why=error)
    elif group.push == PUSH_LOOKING and group.push_error:
        yield _finding("receiver-unreachable", names, why=error)
    elif group.push_error_ms is not None and group.push_error_ms > now_ms - RECENT_MS:
        yield _finding("receiver-failing", names, why=error)
    if group.unfinished is not None and group.push is None:
        kept = f"{group.unfinished:,} message{'' if group.unfinished == 1 else 's'}"
        yield _finding("group-expired", names, kept=kept)
    elif group.reason is None and _is_alone(group, now_ms):
        if group.push is None:
            yield _finding("no-consumers", names, ready=f"{group.ready:,}")
        elif group.push == PUSH_STARTING:
            yield _finding("push-not-started", names, ready=f"{group.ready:,}")
    if group.dead:
        yield _finding("dead-letters", names, dead=f"{group.dead:,}")


def _is_alone(group: GroupHealth, now_ms: int) -> bool:
    """Return whether messages of a group have been ready for `ALONE_MS` without any consumer."""
    if not group.ready or group.consumers or group.leased:
        return False
    return group.oldest_ms is None or group.oldest_ms <= now_ms - ALONE_MS


def why_ready(consumers: int, *, is_pushed: bool) -> str:
    """Return the suffix of the reason that `why` gives for a ready message. It depends on the state of the group on one
    node."""
    if consumers:
        return ""
    if is_pushed:
        return "; the group is pushed, and the push takes no messages at present: sandctl group push show"
    return "; the group has no consumer on this node"


def of_nodes(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the nodes. `info`: a node's view of the cluster."""
    asked = str(info.get("node"))
    if info.get("waiting"):
        yield _finding("node-waiting", {}, node=asked, why=info["waiting"])
    for row in info.get("nodes") or ():
        if row.get("sick"):
            yield _finding("node-sick", {}, node=row.get("node"), why=row["sick"])
        elif not row.get("up"):
            yield _finding("node-down", {}, node=row.get("node"), asked=asked)
    for key, situation in (
        ("storage_failed", "storage-failed"),
        ("no_room", "disk-full"),
        ("http_down", "http-down"),
        ("damage", "damage"),
        ("clock_alarm", "clock-alarm"),
    ):
        if info.get(key):
            yield _finding(situation, {}, node=asked, why="" if info[key] is True else f": {info[key]}")
    for port in info.get("exposed") or ():
        yield _finding("exposed", {}, node=asked, port=port)
    if info.get("feature_level_next"):
        yield _finding("feature-level", {}, next=info["feature_level_next"], level=info.get("feature_level"))
    for one in info.get("shut") or ():
        where = f"partition {one['partition']} of {one['topic']}" if one["topic"] else "the metadata"
        names = {"topic": one["topic"]} if one["topic"] else {}
        yield _finding("replica-shut", names, where=where, node=one["node"], why=one["error"])
    for one in info.get("different") or ():
        where = f"partition {one['partition']} of {one['topic']}"
        of_one = {"where": where, "partition": one["partition"], "nodes": ", ".join(one["nodes"])}
        yield _finding("replica-differs", {"topic": one["topic"]}, **of_one)


def of_silent_node(node: str, why: str) -> Finding:
    """Return the finding about a node that is up and reports nothing about its topics."""
    return _finding("node-silent", {}, node=node, why=why)


def of_leaders(topic: str, without: int, partitions: int) -> Iterator[Finding]:
    """Yield the finding about a topic with partitions that have no leader."""
    if without > 0:
        yield _finding("no-leader", {"topic": topic}, count=without, partitions=partitions)


def replica_nodes(info: Mapping[str, Any]) -> int:
    """Return how many nodes can hold a replica. `info`: a node's view of the cluster."""
    return sum(row.get("standing") == "in" for row in info.get("nodes") or ())


def of_replicas(replicas: Mapping[str, int], nodes: int) -> Iterator[Finding]:
    """Yield the finding for topics that were created before the cluster had enough nodes, or with fewer replicas.

    `replicas`: number of replicas by topic. `nodes`: number of nodes that can hold a replica.
    """
    few = sorted(topic for topic, count in replicas.items() if count < DEFAULT_REPLICAS)
    if few and nodes >= DEFAULT_REPLICAS:
        more = f" and {len(few) - TOPICS_NAMED:,} more" if len(few) > TOPICS_NAMED else ""
        count = f"{len(few):,} topic{'' if len(few) == 1 else 's'}"
        named = ", ".join(few[:TOPICS_NAMED]) + more
        yield _finding("few-replicas", {}, count=count, replicas=DEFAULT_REPLICAS, nodes=nodes, named=named)


def worst_push(states: Iterable[str | None]) -> str | None:
    """Return the state of a pushed group from the states on the nodes; None if no node says that it is pushed."""
    known = set(states)
    return next((state for state in PUSH_STATES if state in known), None)


def sorted_findings(findings: Iterable[Finding]) -> Sequence[Finding]:
    """Return the findings: first the failures, then all others, each in the given order."""
    return sorted(findings, key=lambda one: one.state != FAILED)


def _finding(name: str, about: Mapping[str, str], **values: Any) -> Finding:
    """Return a finding. `values`: those that its texts show, in addition to `about`."""
    situation, names = SITUATIONS[name], {**about, **values}
    found, todo = situation.found.format_map(names), situation.todo.format_map(names)
    return Finding(name, situation.state, situation.what, found, todo, about)
