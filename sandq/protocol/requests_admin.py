"""Requests about topics, groups and the cluster.

TOPIC_CREATE   32 [name, kind str, partitions u32, replicas u32, settings map]
TOPIC_DELETE   33 [name]
TOPIC_UPDATE   34 [name, settings map, partitions u32 | nil, replicas u32 | nil]
GROUP_LIST     40 [topic]
TOPIC_STATS    41 [topic]
GROUP_SEEK     42 [topic, group, to]
GROUP_DELETE   43 [topic, group]
GROUP_UPDATE   44 [topic, group, settings map]
DEAD_LIST      45 [topic, partition, group, reason | nil, limit 1..1000, after bin16 | nil, values bool]
HOLD           46 [topic, partition, name, offset bin16 | nil, ttl_ms | nil]
CLUSTER_INFO   48 []
CLUSTER_CLOCK  49 ["show" | "accept"]
CLUSTER_INIT   50 []
NODE_CHANGE    51 [node, action]
TRANSFER       52 [topic, partition, node]

to     = as the start of a SUBSCRIBE
reason = "nacked" | "lease_expired" | "expired"
action = "drain" | "undrain" | "remove"

GROUP_* are about the partitions that the node asked leads: a client asks all leaders. TOPIC_CREATE, TOPIC_DELETE,
TOPIC_UPDATE, NODE_CHANGE and TRANSFER are for the node that leads the metadata group: another one names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.limits import FIXED
from sandq.protocol.fields import PARTITION_MAX, U32_MAX, Field, Shape, check_choice, check_offset
from sandq.protocol.frames import Frame, Type, encode_frame
from sandq.protocol.requests import START, check_start
from sandq.protocol.requests_messages import DEAD_REASONS, PAGE_MAX

SHOW: Final = "show"
ACCEPT: Final = "accept"

DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
REMOVE: Final = "remove"


_TOPIC_CREATE = Shape(
    "TOPIC_CREATE",
    Field("name", str),
    Field("kind", str),
    Field("partitions", int, maximum=U32_MAX),
    Field("replicas", int, maximum=U32_MAX),
    Field("settings", dict),
)


class TopicCreate(NamedTuple):
    """Make a topic; `settings` as in a topic record, all optional."""

    name: str
    kind: str
    partitions: int
    replicas: int
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> TopicCreate:
        _TOPIC_CREATE.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.TOPIC_CREATE, request_id, *self)


_TOPIC_DELETE = Shape("TOPIC_DELETE", Field("name", str))


class TopicDelete(NamedTuple):
    """Delete a topic and all its messages."""

    name: str

    @classmethod
    def parse(cls, frame: Frame) -> TopicDelete:
        _TOPIC_DELETE.check(frame)
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.TOPIC_DELETE, request_id, *self)


_TOPIC_UPDATE = Shape(
    "TOPIC_UPDATE",
    Field("name", str),
    Field("settings", dict),
    Field("partitions", int, optional=True, maximum=U32_MAX),
    Field("replicas", int, optional=True, maximum=U32_MAX),
)


class TopicUpdate(NamedTuple):
    """Change settings of a topic, and how many partitions and replicas it has; what is not named stays as it is."""

    name: str
    settings: Mapping[str, Any]
    partitions: int | None = None
    replicas: int | None = None

    @classmethod
    def parse(cls, frame: Frame) -> TopicUpdate:
        _TOPIC_UPDATE.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.TOPIC_UPDATE, request_id, *self)


_GROUP_LIST = Shape("GROUP_LIST", Field("topic", str))


class GroupList(NamedTuple):
    """The groups of a topic, a row for each partition that this node leads."""

    topic: str

    @classmethod
    def parse(cls, frame: Frame) -> GroupList:
        _GROUP_LIST.check(frame)
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.GROUP_LIST, request_id, *self)


_TOPIC_STATS = Shape("TOPIC_STATS", Field("topic", str))


class TopicStats(NamedTuple):
    """Counts of a topic, a row for each partition that this node leads."""

    topic: str

    @classmethod
    def parse(cls, frame: Frame) -> TopicStats:
        _TOPIC_STATS.check(frame)
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.TOPIC_STATS, request_id, *self)


_GROUP_SEEK = Shape("GROUP_SEEK", Field("topic", str), Field("group", str), START._replace(name="to"))


class GroupSeek(NamedTuple):
    """Put a group's cursor elsewhere; what it had leased or was to retry is revoked."""

    topic: str
    group: str
    to: str | int | bytes

    @classmethod
    def parse(cls, frame: Frame) -> GroupSeek:
        _GROUP_SEEK.check(frame)
        check_start(_GROUP_SEEK, 3, frame[4])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.GROUP_SEEK, request_id, *self)


_GROUP_DELETE = Shape("GROUP_DELETE", Field("topic", str), Field("group", str))


class GroupDelete(NamedTuple):
    """Forget a group that has no consumers, with its dead letters."""

    topic: str
    group: str

    @classmethod
    def parse(cls, frame: Frame) -> GroupDelete:
        _GROUP_DELETE.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.GROUP_DELETE, request_id, *self)


_GROUP_UPDATE = Shape("GROUP_UPDATE", Field("topic", str), Field("group", str), Field("settings", dict))


class GroupUpdate(NamedTuple):
    """A group's own settings, instead of those that it had; {}: back to the topic's."""

    topic: str
    group: str
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> GroupUpdate:
        _GROUP_UPDATE.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.GROUP_UPDATE, request_id, *self)


_DEAD_LIST = Shape(
    "DEAD_LIST",
    Field("topic", str),
    Field("partition", int, maximum=PARTITION_MAX),
    Field("group", str),
    Field("reason", str, optional=True),
    Field("limit", int, minimum=1, maximum=PAGE_MAX),
    Field("after", bytes, optional=True),
    Field("values", bool),
)


class DeadList(NamedTuple):
    """A page of a group's dead letters in the order of their offsets; `after` as in LIST."""

    topic: str
    partition: int
    group: str
    reason: str | None
    limit: int
    after: bytes | None
    values: bool

    @classmethod
    def parse(cls, frame: Frame) -> DeadList:
        _DEAD_LIST.check(frame)
        check_choice(_DEAD_LIST, 4, frame[5], DEAD_REASONS)
        check_offset(_DEAD_LIST, 6, frame[7])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.DEAD_LIST, request_id, *self)


_HOLD = Shape(
    "HOLD",
    Field("topic", str),
    Field("partition", int, maximum=PARTITION_MAX),
    Field("name", str),
    Field("offset", bytes, optional=True),
    Field("ttl_ms", int, optional=True, minimum=FIXED.hold_least_ms, maximum=FIXED.hold_most_ms),
)


class Hold(NamedTuple):
    """Keep what stands above an offset from being trimmed, for a time; without an offset, no longer: then the time is
    nil, too."""

    topic: str
    partition: int
    name: str
    offset: bytes | None
    ttl_ms: int | None

    @classmethod
    def parse(cls, frame: Frame) -> Hold:
        _HOLD.check(frame)
        check_offset(_HOLD, 4, frame[5])
        if (frame[5] is None) != (frame[6] is None):
            raise _HOLD.wrong(5, "expected int with an offset, and nil without one")
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.HOLD, request_id, *self)


_CLUSTER_INFO = Shape("CLUSTER_INFO")


class ClusterInfo(NamedTuple):
    """The cluster as this node sees it."""

    @classmethod
    def parse(cls, frame: Frame) -> ClusterInfo:
        _CLUSTER_INFO.check(frame)
        return cls()

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.CLUSTER_INFO, request_id)


_CLUSTER_CLOCK = Shape("CLUSTER_CLOCK", Field("action", str))


class ClusterClock(NamedTuple):
    """Show the guarded clock, or accept a step of the wall clock that it refused to follow."""

    action: str

    @classmethod
    def parse(cls, frame: Frame) -> ClusterClock:
        _CLUSTER_CLOCK.check(frame)
        if frame[2] not in (SHOW, ACCEPT):
            raise _CLUSTER_CLOCK.wrong(1, f"expected {SHOW!r} or {ACCEPT!r}, got {frame[2][:40]!r}")
        return cls(frame[2])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.CLUSTER_CLOCK, request_id, *self)


_CLUSTER_INIT = Shape("CLUSTER_INIT")


class ClusterInit(NamedTuple):
    """Found the cluster with the node that is asked, alone, now."""

    @classmethod
    def parse(cls, frame: Frame) -> ClusterInit:
        _CLUSTER_INIT.check(frame)
        return cls()

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.CLUSTER_INIT, request_id)


_NODE_CHANGE = Shape("NODE_CHANGE", Field("node", str), Field("action", str))


class NodeChange(NamedTuple):
    """Let a node hold nothing, or again, or be forgotten. The answer comes when it is written down, not when it is
    done."""

    node: str
    action: str

    @classmethod
    def parse(cls, frame: Frame) -> NodeChange:
        _NODE_CHANGE.check(frame)
        check_choice(_NODE_CHANGE, 2, frame[3], (DRAIN, UNDRAIN, REMOVE))
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.NODE_CHANGE, request_id, *self)


_TRANSFER = Shape("TRANSFER", Field("topic", str), Field("partition", int, maximum=PARTITION_MAX), Field("node", str))


class Transfer(NamedTuple):
    """Let a node that holds a partition lead it."""

    topic: str
    partition: int
    node: str

    @classmethod
    def parse(cls, frame: Frame) -> Transfer:
        _TRANSFER.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.TRANSFER, request_id, *self)
