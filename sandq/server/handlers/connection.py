"""Requests about the connection, and what a client has to know of the cluster to find its way."""

from __future__ import annotations

from typing import Any

from sandq.protocol.requests import Hello, Metadata, Ping
from sandq.server.handlers.routes import Context, told
from sandq.server.handlers.topics import topic_record


def _hello(at: Context, request: Hello) -> tuple[Any, ...]:
    info = at.info
    return info.version, info.node_id, info.cluster_uuid, info.limits, at.broker.clock.now_ms()


def _metadata(at: Context, request: Metadata) -> tuple[Any, ...]:
    names, broker = request.topics, at.broker
    topics = broker.topics() if names is None else [broker.topic(name) for name in dict.fromkeys(names)]
    return at.info.nodes(), [topic_record(at, topic.record) for topic in topics]


ROUTES = (
    told(Hello, _hello),
    told(Metadata, _metadata),
    told(Ping, lambda at, request: at.broker.clock.now_ms()),
)
