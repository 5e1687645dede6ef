"""Requests about topics, groups and the cluster.

TOPIC_CREATE   32 [name, kind str, partitions u32, replicas u32, settings map]
TOPIC_DELETE   33 [name]
GROUP_LIST     40 [topic]
TOPIC_STATS    41 [topic]
CLUSTER_INFO   48 []
CLUSTER_CLOCK  49 ["show" | "accept"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.protocol.fields import U32_MAX, Field, Shape
from sandq.protocol.frames import Frame, Type, encode_frame

SHOW: Final = "show"
ACCEPT: Final = "accept"


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
