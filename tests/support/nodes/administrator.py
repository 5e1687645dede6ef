"""Change metadata by direct calls of a node's broker, with one short method for each change."""

from __future__ import annotations

from typing import Any

from sandq.broker.broker import Broker
from sandq.metadata.records import Topic
from sandq.model.caller import NODE
from sandq.protocol.requests_admin import (
    DRAIN,
    REMOVE,
    UNDRAIN,
    GroupLimit,
    NodeChange,
    TopicCreate,
    TopicDelete,
    TopicUpdate,
    Transfer,
)


class Administrator:
    """Makes the requests that a client would send to the node that leads the metadata."""

    def __init__(self, broker: Broker) -> None:
        self.routes = broker.routes
        self._administration = broker.administration

    async def create_topic(
        self, name: str, kind: str, partitions: int, replicas: int, settings: dict[str, Any]
    ) -> Topic:
        return await self._administration.topics.create_topic(
            TopicCreate(name, kind, partitions, replicas, settings), NODE
        )

    async def update_topic(
        self, name: str, settings: dict[str, Any], partitions: int | None = None, replicas: int | None = None
    ) -> Topic:
        return await self._administration.topics.update_topic(TopicUpdate(name, settings, partitions, replicas), NODE)

    async def delete_topic(self, name: str) -> None:
        await self._administration.topics.delete_topic(TopicDelete(name), NODE)

    async def limit_group(self, topic: str, group: str, limits: dict[str, Any]) -> None:
        await self._administration.topics.limit_group(GroupLimit(topic, group, limits), NODE)

    async def drain(self, node: str, *, undo: bool = False) -> None:
        await self._administration.nodes.change_node(NodeChange(node, UNDRAIN if undo else DRAIN), NODE)

    async def remove(self, node: str) -> None:
        await self._administration.nodes.change_node(NodeChange(node, REMOVE), NODE)

    async def transfer(self, topic: str, partition: int, node: str) -> None:
        await self._administration.nodes.transfer(Transfer(topic, partition, node), NODE)
