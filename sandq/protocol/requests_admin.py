"""Requests about topics, groups and the cluster.

GROUP_* concern the partitions that the receiving node leads, so a client sends them to all leaders. ENTRY_SKIP is for
the node that leads one partition. TOPIC_CREATE, TOPIC_ENSURE, TOPIC_DELETE, TOPIC_UPDATE, GROUP_LIMIT, GROUP_PUSH,
NODE_CHANGE, TRANSFER, REBUILD and FINALIZE are for the node that leads the metadata group; any other node replies with
the leader's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from sandq.model.errors import InvalidRequest
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.names import check_tenant
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
"""Maximum number of commands of a log entry that a request names."""


def check_tenant_name(value: str) -> str | None:
    """Return what is wrong with the name of a tenant. None if it is valid."""
    try:
        check_tenant(value)
    except InvalidRequest as error:
        return error.message
    return None


def check_key(value: bytes) -> str | None:
    """Return what is wrong with a key. None if it is valid."""
    return f"a key of {len(value)} bytes; {DEFAULT.key_bytes} is the limit" if len(value) > DEFAULT.key_bytes else None


def _check_id(value: Any) -> str | None:
    if type(value) is not bytes or len(value) != OFFSET_BYTES:
        return f"an id of {OFFSET_BYTES} bytes is expected"
    return None


class TopicCreate(Request, type=Type.TOPIC_CREATE):
    """Create a topic; `settings` as in a topic record, all optional.

    `replicas` nil: the broker chooses 3 if at least 3 nodes can hold replicas, else 1.
    """

    name: str
    kind: str
    partitions: U32
    replicas: U32 | None
    settings: Mapping[str, Any]


class TopicEnsure(Request, type=Type.TOPIC_ENSURE):
    """Create a topic as `auto_create_topics` says, unless it exists. Sent by clients that produce or subscribe to
    it."""

    name: str


class TopicDelete(Request, type=Type.TOPIC_DELETE):
    """Delete a topic and all its messages."""

    name: str


class TopicUpdate(Request, type=Type.TOPIC_UPDATE):
    """Change settings of a topic, or its number of partitions or replicas. Omitted values are kept."""

    name: str
    settings: Mapping[str, Any]
    partitions: U32 | None = None
    replicas: U32 | None = None


class GroupList(Request, type=Type.GROUP_LIST):
    """Return the groups of a topic: one row per group and partition that this node leads."""

    topic: str


class ConsumerList(Request, type=Type.CONSUMER_LIST):
    """Return the consumers of a group in the partitions that this node leads: one row per consumer."""

    topic: str
    group: str


class PauseList(Request, type=Type.PAUSE_LIST):
    """Return the paused tenants and keys of a group in the partitions that this node leads: one row per tenant or
    key."""

    topic: str
    group: str


class TopicStats(Request, type=Type.TOPIC_STATS):
    """Return counts of a topic: one row per partition that this node leads."""

    topic: str


class GroupSeek(Request, type=Type.GROUP_SEEK):
    """Move a group's cursor. Its leases and pending retries are revoked."""

    topic: str
    group: str
    to: Start


class GroupDelete(Request, type=Type.GROUP_DELETE):
    """Delete a group that has no consumers, with its dead letters.

    Without a mode, the request is refused while the group has unfinished messages. `check`: delete nothing, and return
    how many unfinished messages the group has on this node. `force`: delete the group with its unfinished messages.
    """

    topic: str
    group: str
    mode: Annotated[str, choice(CHECK, FORCE)] | None = None


class GroupUpdate(Request, type=Type.GROUP_UPDATE):
    """Replace a group's own settings; {}: use the topic's."""

    topic: str
    group: str
    settings: Mapping[str, Any]


class GroupPause(Request, type=Type.GROUP_PAUSE):
    """Pause a group, so that it gets no messages (True), or resume it (False).

    `until_ms` or `for_ms`: when the pause ends by itself, or after which time. Without both, it stays until it is
    resumed. `tenant`, `key`: pause or resume only the messages of this tenant and the tenants below it, or of this
    key."""

    topic: str
    group: str
    paused: bool
    until_ms: U48 | None = None
    for_ms: U48 | None = None
    tenant: Annotated[str, check_tenant_name] | None = None
    key: Annotated[bytes, check_key] | None = None

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        if request.tenant is not None and request.key is not None:
            raise cls.wrong("key", "a tenant is given, too; give one of them")
        return request


class GroupLimit(Request, type=Type.GROUP_LIMIT):
    """Replace the limits of a group across all partitions: `max_in_flight`, `rate`, `burst`, `unit`, or `limit`; {}:
    none. In the topic `sandq.limits`, `group` is the name of a limit."""

    topic: str
    group: str
    limits: Mapping[str, Any]


class LimitList(Request, type=Type.LIMIT_LIST):
    """Return the state of the named limits, from the node that leads their topic: one row per limit, or that of `name`
    with its members."""

    topic: str
    name: str | None = None


class GroupPush(Request, type=Type.GROUP_PUSH):
    """Push the messages of a group to a URL, or change the push: `url`, `secrets`, `keep_secrets`, `concurrency`,
    `timeout`. Omitted values are kept. Nil: stop pushing."""

    topic: str
    group: str
    push: Mapping[str, Any] | None


class PushList(Request, type=Type.PUSH_LIST):
    """Return the pushed groups of a topic, one row per group, with the state of the push for the partitions that this
    node leads."""

    topic: str


class DeadList(Request, type=Type.DEAD_LIST):
    """Return a page of a group's dead letters, ordered by offset; `after` and `order` as in LIST.

    `from_ms` and `until_ms` bound the time of death. `error` is a part of the last error, `key_prefix` the beginning of
    the key.
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
    """Protect the messages above an offset from being trimmed, for a time. Without an offset, end the hold; the time
    must then be nil, too."""

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
    """Return the cluster as this node sees it."""


class ClusterClock(Request, type=Type.CLUSTER_CLOCK):
    """Return the state of the guarded clock, or accept a step of the wall clock that it refused to follow."""

    action: Annotated[str, choice(SHOW, ACCEPT)]


class ClusterInit(Request, type=Type.CLUSTER_INIT):
    """Found the cluster now, with the receiving node as its only member."""


class NodeChange(Request, type=Type.NODE_CHANGE):
    """Drain a node, undo a drain, or remove a node. The reply comes when the change is recorded; the change is
    completed later."""

    node: str
    action: Annotated[str, choice(DRAIN, UNDRAIN, REMOVE)]


class Transfer(Request, type=Type.TRANSFER):
    """Transfer the leadership of a partition to a node that holds it."""

    topic: str
    partition: Partition
    node: str


class Rebuild(Request, type=Type.REBUILD):
    """Make a node drop its replica of a partition, and copy it again from the other replicas. The reply comes when the
    group continues without the replica, and the metadata has assigned the partition to the node again."""

    topic: str
    partition: Partition
    node: str


class Finalize(Request, type=Type.FINALIZE):
    """Raise the cluster to the highest feature level that all nodes know, permanently. `dry_run`: only return that
    level."""

    dry_run: bool


def _check_positions(positions: Sequence[Any]) -> str | None:
    if not 1 <= len(positions) <= ENTRY_COMMANDS:
        return f"1..{ENTRY_COMMANDS} positions are allowed, not {len(positions)}"
    if not all([type(at) is int and 0 <= at < ENTRY_COMMANDS for at in positions]):
        return f"expected positions of commands, ints from 0 to {ENTRY_COMMANDS - 1}"
    return None


class EntrySkip(Request, type=Type.ENTRY_SKIP):
    """Skip the entry that shut a partition (ADR 46). For the node that leads the partition; any other node
    replies with the leader's name.

    `topic`: None is the metadata. `entry`: its index; None: the entry that shut the partition. `commands`: positions in
    the entry; None: the command that failed, or all if that is not known. `dry_run`: only return what would be skipped.
    `force`: skip it even if a replica that may have applied it cannot be reached.
    """

    topic: str | None
    partition: Partition
    entry: int | None
    commands: Annotated[Sequence[int], _check_positions] | None
    dry_run: bool
    force: bool


class ClockReset(Request, type=Type.CLOCK_RESET):
    """Set the time of a partition back to its leader's clock, if it is ahead. The reply comes when the reset has
    begun."""

    topic: str
    partition: Partition
