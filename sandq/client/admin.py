"""Administration: topics, groups, the cluster and its clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sandq.client.cluster import Cluster
from sandq.client.connection import Build
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.names import check_name
from sandq.model.times import duration_ms, format_duration
from sandq.protocol.frames import Frame
from sandq.protocol.replies import MetadataReply, TopicRecord
from sandq.protocol.requests import Metadata
from sandq.protocol.requests_admin import (
    ACCEPT,
    SHOW,
    ClusterClock,
    ClusterInfo,
    GroupList,
    TopicCreate,
    TopicDelete,
    TopicStats,
)


class Admin:
    """`client.admin`. A request is tried again within the client's `timeout` where that is safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_topic(
        self, name: str, *, kind: str = "timer", partitions: int = 1, replicas: int = 1, **settings: Any
    ) -> TopicRecord:
        """Make a topic; settings: `lease="30s"`, `max_attempts=10`, `backoff={...}`, `delete_on_ack=True`,
        ...

        TopicExists when there is one of this name; InvalidSetting names every mistake in the settings. A
        TimedOut or ConnectionLost leaves open whether it was made.
        """
        check_name("topic", name)
        for what, count in (("partitions", partitions), ("replicas", replicas)):
            if type(count) is not int or not 1 <= count < 2**32:
                raise InvalidRequest(f"{what}: an int from 1 on is expected, not {count!r}")
        request = TopicCreate(name, kind, partitions, replicas, _plain(settings))
        frame = await self._cluster.call(request.frame, idempotent=False)
        self._cluster.forget(name)
        return TopicRecord.from_map(_field(frame))

    async def list_topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        reply = MetadataReply.parse(await self._cluster.call(Metadata(None).frame))
        return sorted(reply.topics, key=lambda topic: topic.name)

    async def topic(self, name: str) -> TopicRecord:
        """One topic; UnknownTopic when there is none of this name."""
        check_name("topic", name)
        reply = MetadataReply.parse(await self._cluster.call(Metadata([name]).frame))
        for record in reply.topics:
            if record.name == name:
                return record
        raise ProtocolError(f"METADATA reply: nothing about topic {name!r}")

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages."""
        check_name("topic", name)
        await self._cluster.call(TopicDelete(name).frame, idempotent=False)
        self._cluster.forget(name)

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        """The groups of a topic, a row for each partition and group; offsets (`cursor`, `committed`) as text."""
        rows = await self._of_all_leaders(topic, GroupList(topic).frame)
        return sorted(rows, key=lambda row: (str(row.get("group")), row.get("partition", 0)))

    async def stats(self, topic: str) -> list[dict[str, Any]]:
        """What a topic's partitions hold, a row each."""
        rows = await self._of_all_leaders(topic, TopicStats(topic).frame)
        return sorted(rows, key=lambda row: row.get("partition", 0))

    async def cluster(self) -> dict[str, Any]:
        """The cluster as one of its nodes sees it."""
        return _map(await self._cluster.call(ClusterInfo().frame))

    async def clock(self, *, accept: bool = False) -> dict[str, Any]:
        """The guarded clock of a node: `guarded_ms`, `wall_ms`, `drift_ms`, `alarm`.

        `accept` makes it follow a step of the wall clock that it did not trust.
        """
        request = ClusterClock(ACCEPT if accept else SHOW)
        return _map(await self._cluster.call(request.frame, idempotent=not accept))

    async def _of_all_leaders(self, topic: str, build: Build) -> list[dict[str, Any]]:
        """Ask every node that leads a partition; each answers for its own."""
        record = await self.topic(topic)
        leaders = sorted({row.leader for row in record.partitions if row.leader is not None})
        rows: list[dict[str, Any]] = []
        for leader in (*leaders,) or (None,):
            frame = await self._cluster.call(build, node_id=leader)
            found = _field(frame)
            if type(found) is not list or not all(type(row) is dict for row in found):
                raise ProtocolError(f"expected an array of maps, got {str(found)[:100]}")
            rows += [{name: _shown(value) for name, value in row.items()} for row in found]
        return rows


def _field(frame: Frame) -> Any:
    if len(frame) < 3:
        raise ProtocolError("a reply without its field")
    return frame[2]


def _map(frame: Frame) -> dict[str, Any]:
    found = _field(frame)
    if type(found) is not dict:
        raise ProtocolError(f"expected a map, got {str(found)[:100]}")
    return found


def _shown(value: Any) -> Any:
    """Offsets as text; everything else as it is."""
    return offset_model.to_text(value) if type(value) is bytes and len(value) == offset_model.OFFSET_BYTES else value


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as msgpack knows them: a timedelta becomes a duration's text; what is wrong the broker says."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, timedelta):
            plain[name] = format_duration(duration_ms(value))
        elif isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
        else:
            raise InvalidRequest(f"{name}: {type(value).__name__} is no value of a setting")
    return plain
