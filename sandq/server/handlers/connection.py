"""Requests about the connection, and what a client has to know of the cluster to find its way."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from sandq.protocol.frames import PackedArray
from sandq.protocol.requests import Hello, Metadata, Ping
from sandq.server.handlers.routes import Context, Packed, sliced, told

TOPIC_WORK: Final = 1


def _hello(at: Context, request: Hello) -> tuple[Any, ...]:
    info = at.info
    return info.version, info.node_id, info.cluster_uuid, info.limits, at.broker.clock.now_ms()


async def _metadata(at: Context, request: Metadata) -> Packed:
    names, broker, turn = request.topics, at.broker, at.connection.turn
    records = []
    for name in [*broker.catalog.topics] if names is None else dict.fromkeys(names):
        await turn.spend(TOPIC_WORK)
        if names is not None or name in broker.catalog.topics:  # it may have been deleted since the turn before
            records.append(await at.info.topics.encoded(broker.topic(name).record, turn))
    return Packed((msgpack.packb(at.info.nodes()), PackedArray(len(records), records)))


ROUTES = (
    told(Hello, _hello),
    sliced(Metadata, _metadata),
    told(Ping, lambda at, request: at.broker.clock.now_ms()),
)
