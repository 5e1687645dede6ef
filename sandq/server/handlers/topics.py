"""Requests about topics as a whole, and holds on their logs."""

from __future__ import annotations

from typing import Any

from sandq.metadata.records import Topic
from sandq.protocol.requests_admin import ClockReset, Hold, TopicCreate, TopicDelete, TopicStats, TopicUpdate
from sandq.server.handlers.routes import Context, answered


def topic_record(at: Context, record: Topic) -> dict[str, Any]:
    """A topic as answers tell of it."""
    leader = at.broker.routes.leader
    return {
        "name": record.name,
        "number": record.number,
        "kind": record.kind,
        "partitions": [
            [number, partition.group, leader(partition.group), partition.nodes, partition.moving]
            for number, partition in enumerate(record.partitions)
        ],
        "initial_partitions": record.initial_partitions,
        "replicas": record.replicas,
        "settings": record.settings,
    }


async def _create(at: Context, request: TopicCreate) -> dict[str, Any]:
    # This node may not have opened it yet: it exists all the same, and must not be made a second time.
    return topic_record(at, await at.broker.administration.create_topic(request, at.caller))


async def _update(at: Context, request: TopicUpdate) -> dict[str, Any]:
    return topic_record(at, await at.broker.administration.update_topic(request, at.caller))


ROUTES = (
    answered(TopicCreate, _create),
    answered(TopicUpdate, _update),
    answered(TopicDelete, lambda at, request: at.broker.administration.delete_topic(request, at.caller)),
    answered(TopicStats, lambda at, request: at.queries.topic_stats(request, at.caller)),
    answered(ClockReset, lambda at, request: at.queries.reset_clock(request, at.caller)),
    answered(Hold, lambda at, request: at.queries.hold(request, at.caller)),
)
