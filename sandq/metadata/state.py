"""Topics, nodes, and the counters whose numbers are never reused.

Rows (relative to the metadata store), values msgpack. PERSISTED::

    "n" node id     [store uuid, {name: address}]
    "s"             [version=1, applied_index, next_topic, next_group, next_incarnation, cluster uuid | nil]
    "t" name        [number, kind, initial_partitions, settings, created_ms, [[raft group, [member, ...]], ...],
                     settings it was created with]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from sandq.model.errors import Conflict, InvalidRequest, NotFound, TopicExists, UnknownTopic

from . import commands as c

STATE_KEY = b"s"
_VERSION = 1
FIRST_GROUP = 1
"""Raft group 0 is the metadata group itself."""

Put = Callable[[bytes, bytes | None], None]


@dataclass(frozen=True, slots=True)
class Partition:
    group: int
    """Raft group number."""
    members: tuple[str, ...]
    """`node id#incarnation`."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    number: int
    kind: str
    initial_partitions: int
    settings: dict[str, Any]
    created_ms: int
    partitions: tuple[Partition, ...]
    first_settings: dict[str, Any]
    """Those it was created with: each replica begins with them, whenever that is, and learns of others by its log."""

    def row(self) -> bytes:
        partitions = [(p.group, p.members) for p in self.partitions]
        row: bytes = msgpack.packb(
            (
                self.number,
                self.kind,
                self.initial_partitions,
                self.settings,
                self.created_ms,
                partitions,
                self.first_settings,
            )
        )
        return row

    @classmethod
    def load(cls, name: str, row: bytes) -> Topic:
        number, kind, initial, settings, created_ms, partitions, first_settings = msgpack.unpackb(row)
        placed = tuple(Partition(g, tuple(m)) for g, m in partitions)
        return cls(name, number, kind, initial, settings, created_ms, placed, first_settings)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    node_id: str
    store_uuid: str
    addresses: dict[str, str]


class MetadataState:
    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_uuid: str | None = None
        self.topics: dict[str, Topic] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self._next_topic = 1
        self.next_group = FIRST_GROUP
        """No raft group has this number, or a higher one, yet."""
        self._next_incarnation = 1

    @classmethod
    def load(cls, rows: list[tuple[bytes, bytes]]) -> MetadataState:
        """From all rows of the metadata store."""
        self = cls()
        for key, value in rows:
            name = key[1:].decode()
            if key[:1] == b"t":
                self.topics[name] = Topic.load(name, value)
            elif key[:1] == b"n":
                self.nodes[name] = NodeRecord(name, *msgpack.unpackb(value))
            elif key == STATE_KEY:
                _, self.applied_index, *counters, self.cluster_uuid = msgpack.unpackb(value)
                self._next_topic, self.next_group, self._next_incarnation = counters
        return self

    def write_state(self, put: Put) -> None:
        counters = (self._next_topic, self.next_group, self._next_incarnation)
        put(STATE_KEY, msgpack.packb((_VERSION, self.applied_index, *counters, self.cluster_uuid)))

    def apply(self, index: int, entry: c.Entry, put: Put) -> list[Any]:
        """One result a command: the Topic, the NodeRecord or the cluster UUID, or the SandqError that refused it."""
        if index <= self.applied_index:
            return []
        results: list[Any] = []
        for command in entry.commands:
            try:
                match command:
                    case c.RegisterNode():
                        results.append(self._register(command, put))
                    case c.CreateTopic():
                        results.append(self._create(command, entry.now_ms, put))
                    case c.DeleteTopic():
                        results.append(self._delete(command, put))
                    case c.UpdateTopic():
                        results.append(self._update(command, put))
                    case c.FormCluster():
                        self.cluster_uuid = self.cluster_uuid or command.cluster_uuid
                        results.append(self.cluster_uuid)
            except (NotFound, Conflict, InvalidRequest) as refusal:
                results.append(refusal)
        self.applied_index = index
        return results

    def _register(self, command: c.RegisterNode, put: Put) -> NodeRecord:
        node = NodeRecord(command.node_id, command.store_uuid, command.addresses)
        self.nodes[node.node_id] = node
        put(b"n" + node.node_id.encode(), msgpack.packb((node.store_uuid, node.addresses)))
        return node

    def _create(self, command: c.CreateTopic, now_ms: int, put: Put) -> Topic:
        if command.name in self.topics:
            raise TopicExists(f"there is a topic {command.name!r} already", topic=command.name)
        partitions = []
        for nodes in command.placement:
            unknown = sorted(set(nodes) - self.nodes.keys())
            if unknown:
                raise InvalidRequest(f"topic {command.name!r} is placed on {unknown[0]!r}, which is not registered")
            members = tuple(f"{node}#{self._next_incarnation + at}" for at, node in enumerate(nodes))
            self._next_incarnation += len(members)
            partitions.append(Partition(self.next_group, members))
            self.next_group += 1
        topic = Topic(
            command.name,
            self._next_topic,
            command.kind,
            len(partitions),
            command.settings,
            now_ms,
            tuple(partitions),
            command.settings,
        )
        self._next_topic += 1
        self.topics[topic.name] = topic
        put(b"t" + topic.name.encode(), topic.row())
        return topic

    def _update(self, command: c.UpdateTopic, put: Put) -> Topic:
        topic = self.topics.get(command.name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {command.name!r}", topic=command.name)
        topic = self.topics[command.name] = replace(topic, settings=command.settings)
        put(b"t" + topic.name.encode(), topic.row())
        return topic

    def _delete(self, command: c.DeleteTopic, put: Put) -> Topic:
        topic = self.topics.pop(command.name, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic {command.name!r}", topic=command.name)
        put(b"t" + command.name.encode(), None)
        return topic
