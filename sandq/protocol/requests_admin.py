"""Requests about topics, groups and the cluster.

GROUP_* are about the partitions that the node asked leads: a client asks all leaders. ENTRY_SKIP is for the node that
leads one partition. TOPIC_CREATE, TOPIC_ENSURE,
TOPIC_DELETE, TOPIC_UPDATE, GROUP_LIMIT, GROUP_PUSH, NODE_CHANGE, TRANSFER, REBUILD and FINALIZE are for the node that
leads the metadata group: another one names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from sandq.model.limits import FIXED
from sandq.protocol.fields import OFFSET_BYTES, U48_MAX
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import (
    U32,
    U48,
    Bounds,
    Offset,
    Partition,
    Request,
    choice,
    each,
)
from sandq.protocol.requests import Start
from sandq.protocol.requests_messages import DEAD_REASONS, NEWEST, PAGE_MAX, PageSize, check_error, check_prefix

SHOW: Final = "show"
ACCEPT: Final = "accept"

CHECK: Final = "check"
FORCE: Final = "force"
DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
REMOVE: Final = "remove"
ENTRY_COMMANDS: Final = 1 << 20
"""Commands of a log entry that a request names at most."""


def _check_id(value: Any) -> str | None:
    if type(value) is not bytes or len(value) != OFFSET_BYTES:
        return f"an id of {OFFSET_BYTES} bytes is expected"
    return None


class TopicCreate(Request, type=Type.TOPIC_CREATE):
    """Make a topic; `settings` as in a topic record, all optional.

    `replicas` nil: the broker chooses, 3 where at least 3 nodes can hold replicas, else 1.
    """

    name: str
    kind: str
    partitions: U32
    replicas: U32 | None
    settings: Mapping[str, Any]


class TopicEnsure(Request, type=Type.TOPIC_ENSURE):
    """Make a topic as `auto_create_topics` says, unless it is there; for who produces to it or subscribes to it."""

    name: str


class TopicDelete(Request, type=Type.TOPIC_DELETE):
    """Delete a topic and all its messages."""

    name: str


class TopicUpdate(Request, type=Type.TOPIC_UPDATE):
    """Change settings of a topic, and how many partitions and replicas it has; what is not named stays as it is."""

    name: str
    settings: Mapping[str, Any]
    partitions: U32 | None = None
    replicas: U32 | None = None


class GroupList(Request, type=Type.GROUP_LIST):
    """The groups of a topic, a row for each partition that this node leads."""

    topic: str


class ConsumerList(Request, type=Type.CONSUMER_LIST):
    """The consumers of a group, as far as they concern the partitions that this node leads, a row each."""

    topic: str
    group: str


class TopicStats(Request, type=Type.TOPIC_STATS):
    """Counts of a topic, a row for each partition that this node leads."""

    topic: str


class GroupSeek(Request, type=Type.GROUP_SEEK):
    """Put a group's cursor elsewhere; what it had leased or was to retry is revoked."""

    topic: str
    group: str
    to: Start


class GroupDelete(Request, type=Type.GROUP_DELETE):
    """Forget a group that has no consumers, with its dead letters.

    Without a mode it is refused while the group has unfinished messages. `check`: delete nothing, and answer how many
    unfinished messages it has here. `force`: delete it with its unfinished messages.
    """

    topic: str
    group: str
    mode: Annotated[str, choice(CHECK, FORCE)] | None = None


class GroupUpdate(Request, type=Type.GROUP_UPDATE):
    """A group's own settings, instead of those that it had; {}: back to the topic's."""

    topic: str
    group: str
    settings: Mapping[str, Any]


class GroupPause(Request, type=Type.GROUP_PAUSE):
    """Have a group get nothing from now on (True), or get again what there is (False)."""

    topic: str
    group: str
    paused: bool


class GroupLimit(Request, type=Type.GROUP_LIMIT):
    """Limits of a group over all partitions, instead of those it had: `max_in_flight`, `rate`, `burst`; {}: none."""

    topic: str
    group: str
    limits: Mapping[str, Any]


class GroupPush(Request, type=Type.GROUP_PUSH):
    """Have the messages of a group pushed to a URL, or change how: `url`, `secrets`, `keep_secrets`, `concurrency`,
    `timeout`; what is not named stays. Nil: they are not pushed any more."""

    topic: str
    group: str
    push: Mapping[str, Any] | None


class PushList(Request, type=Type.PUSH_LIST):
    """The groups of a topic that are pushed, a row each, and how that goes for the partitions this node leads."""

    topic: str


class DeadList(Request, type=Type.DEAD_LIST):
    """A page of a group's dead letters in the order of their offsets; `after` and `order` as in LIST.

    `from_ms` and `until_ms` bound when they died, `error` is part of their last error, `key_prefix` the beginning of
    their keys.
    """

    topic: str
    partition: Partition
    group: str
    reason: Annotated[str, choice(*DEAD_REASONS)] | None
    limit: PageSize
    after: Offset | None
    values: bool
    from_ms: U48 = 0
    until_ms: U48 = U48_MAX
    error: Annotated[str, check_error] | None = None
    key_prefix: Annotated[bytes, check_prefix] | None = None
    order: Annotated[str, choice(NEWEST)] | None = None


class DeadRedrive(Request, type=Type.DEAD_REDRIVE):
    """Make these dead letters of a group ready again."""

    topic: str
    partition: Partition
    group: str
    ids: Annotated[Sequence[bytes], each(_check_id, PAGE_MAX)]


class DeadPurge(Request, type=Type.DEAD_PURGE):
    """Delete these dead letters of a group."""

    topic: str
    partition: Partition
    group: str
    ids: Annotated[Sequence[bytes], each(_check_id, PAGE_MAX)]


class Hold(Request, type=Type.HOLD):
    """Keep what stands above an offset from being trimmed, for a time; without an offset, no longer: then the time is
    nil, too."""

    topic: str
    partition: Partition
    name: str
    offset: Offset | None
    ttl_ms: Annotated[int, Bounds(FIXED.hold_least_ms, FIXED.hold_most_ms)] | None

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        if (request.offset is None) != (request.ttl_ms is None):
            raise cls.wrong("ttl_ms", "expected int with an offset, and nil without one")
        return request


class ClusterInfo(Request, type=Type.CLUSTER_INFO):
    """The cluster as this node sees it."""


class ClusterClock(Request, type=Type.CLUSTER_CLOCK):
    """Show the guarded clock, or accept a step of the wall clock that it refused to follow."""

    action: Annotated[str, choice(SHOW, ACCEPT)]


class ClusterInit(Request, type=Type.CLUSTER_INIT):
    """Found the cluster with the node that is asked, alone, now."""


class NodeChange(Request, type=Type.NODE_CHANGE):
    """Let a node hold nothing, or again, or be forgotten. The answer comes when it is written down, not when it is
    done."""

    node: str
    action: Annotated[str, choice(DRAIN, UNDRAIN, REMOVE)]


class Transfer(Request, type=Type.TRANSFER):
    """Let a node that holds a partition lead it."""

    topic: str
    partition: Partition
    node: str


class Rebuild(Request, type=Type.REBUILD):
    """Let a node drop its replica of a partition, and get it anew from the others. The answer comes when it is dropped
    and on its way."""

    topic: str
    partition: Partition
    node: str


class Finalize(Request, type=Type.FINALIZE):
    """Come to the highest feature level that all nodes know, for good. `dry_run`: only say which that is."""

    dry_run: bool


def _check_positions(positions: Sequence[Any]) -> str | None:
    if not 1 <= len(positions) <= ENTRY_COMMANDS:
        return f"1..{ENTRY_COMMANDS} positions are allowed, not {len(positions)}"
    if not all([type(at) is int and 0 <= at < ENTRY_COMMANDS for at in positions]):
        return f"expected positions of commands, ints from 0 to {ENTRY_COMMANDS - 1}"
    return None


class EntrySkip(Request, type=Type.ENTRY_SKIP):
    """Skip the entry that shut a partition (ADR 46). For the node that leads it; any other names that one.

    `topic`: None is the metadata. `entry`: its index; None: of the one that shut it. `commands`: positions in it; None:
    the one that failed, or all if that is not known. `dry_run`: only say what it is. `force`: also if a replica that
    may have applied it cannot be reached."""

    topic: str | None
    partition: Partition
    entry: int | None
    commands: Annotated[Sequence[int], _check_positions] | None
    dry_run: bool
    force: bool


class ClockReset(Request, type=Type.CLOCK_RESET):
    """Set the time of a partition back to its leader's clock, if it is ahead. The answer comes when that has begun."""

    topic: str
    partition: Partition
