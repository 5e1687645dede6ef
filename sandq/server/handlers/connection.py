"""Requests about the connection, and what a client has to know of the cluster to find its way."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from sandq.model.access import Access, Right
from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.limits import FIXED
from sandq.model.topic_patterns import TopicPattern
from sandq.protocol.frames import Frame, PackedArray
from sandq.protocol.requests import Hello, Metadata, OnBehalf, Ping, Prove, TopicNames
from sandq.server.handlers.routes import Context, Packed, framed, sliced, told

TOPIC_WORK: Final = 1
GRANTS: Final = 16
"""That cost about as much to look at, for one name, as a topic."""
PATTERN_CHARS: Final = 16
"""Of a pattern, that cost as much to make out as a topic to look at."""


async def _hello(at: Context, request: Hello) -> tuple[Any, ...]:
    if at.entrance.is_in:
        # What it began goes by who it is: nobody else may go on with that.
        raise InvalidRequest("HELLO comes once: connect again to be somebody else")
    info, cluster_uuid = at.info, at.info.cluster_uuid
    challenge = at.gateway_proof.challenge(request.options, cluster_uuid)
    await at.entrance.hello(request)
    return info.version, info.node_id, cluster_uuid, info.limits, at.broker.clock.now_ms(), *challenge


def _prove(at: Context, request: Prove) -> None:
    at.entrance.prove(request)
    at.on_proved()


def _on_behalf(at: Context, frame: Frame) -> None:
    at.gateway_proof.require()
    at.kv_gets.flush()  # what came before is asked by another
    try:
        principal, address, grants = OnBehalf.parse(frame)
    except InvalidRequest as error:
        # Nobody knows on whose behalf what follows would be.
        raise ProtocolError(error.message) from None
    who, gateway = principal or ANONYMOUS, at.connection.address
    access = None if grants is None else Access.of(who, grants, {})
    at.connection.ask_for(None if address is None else Caller(who, address, gateway, access))


async def _metadata(at: Context, request: Metadata) -> Packed:
    names, broker, turn = request.topics, at.broker, at.connection.turn
    access = at.entrance.access  # a gateway leaves out itself what its caller may not see
    records = []
    work = TOPIC_WORK if access is None else TOPIC_WORK + len(access.grants) // GRANTS
    for name in dict.fromkeys(names or ()):
        if access is None:
            break
        await turn.spend(work)
        if not access.sees(name[: FIXED.name_chars + 1]):
            raise access.refusal(Right.READ, name)
    for name in [*broker.catalog.topics] if names is None else dict.fromkeys(names):
        await turn.spend(work)
        if names is None and access is not None and not access.sees(name):
            continue
        if names is not None or name in broker.catalog.topics:  # it may have been deleted since the turn before
            records.append(await at.info.topics.encoded(broker.catalog.topic(name).record, turn))
    return Packed((msgpack.packb(at.info.nodes()), PackedArray(len(records), records)))


async def _names(at: Context, request: TopicNames) -> list[str]:
    turn = at.connection.turn
    await turn.spend(sum(map(len, request.patterns)) // PATTERN_CHARS)
    pattern, access = TopicPattern(request.patterns), at.entrance.access
    work = TOPIC_WORK if access is None else TOPIC_WORK + len(access.grants) // GRANTS
    found = []
    for name in sorted(at.broker.catalog.topics):
        if pattern.matches(name) and (access is None or access.sees(name)):
            found.append(name)
            if len(found) == request.most:
                break
        await turn.spend(work)
    return found


ROUTES = (
    sliced(Hello, _hello),
    sliced(Metadata, _metadata),
    sliced(TopicNames, _names),
    told(Prove, _prove),
    framed(OnBehalf, _on_behalf),
    told(Ping, lambda at, request: at.broker.clock.now_ms()),
)
