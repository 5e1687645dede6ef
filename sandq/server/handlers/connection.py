"""Handle requests about the connection, and those with which clients find topics and their leaders."""

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
from sandq.server.handlers.routes import Context, Packed, framed, immediate, sliced

TOPIC_WORK: Final = 1
GRANTS: Final = 16
"""Number of grants that cost about as much to check against a name as a topic."""
PATTERN_CHARS: Final = 16
"""Characters of a pattern that cost about as much to compile as a topic costs to match."""


async def _hello(context: Context, request: Hello) -> tuple[Any, ...]:
    """Authenticate the client, and return the version, the id and the limits of this node."""
    if context.entrance.is_in:
        # Requests in progress belong to the first identity: a second one must not continue them.
        raise InvalidRequest("HELLO comes once: connect again to use other credentials")
    info, cluster_uuid = context.info, context.info.cluster_uuid
    challenge = context.gateway_proof.challenge(request.options, cluster_uuid)
    await context.entrance.hello(request)
    return info.version, info.node_id, cluster_uuid, info.limits, context.broker.clock.now_ms(), *challenge


def _prove(context: Context, request: Prove) -> None:
    """Check the proof of a gateway, and give its requests the handlers for gateways."""
    context.entrance.prove(request)
    context.on_proved()


def _on_behalf(context: Context, frame: Frame) -> None:
    """Set the caller of the requests that a gateway sends next."""
    context.gateway_proof.require()
    context.kv_gets.flush()  # the gathered requests belong to the previous caller
    try:
        principal, address, grants = OnBehalf.parse(frame)
    except InvalidRequest as error:
        # The caller of all following requests is unknown, so the connection must end.
        raise ProtocolError(error.message) from None
    identity, gateway = principal or ANONYMOUS, context.connection.address
    access = None if grants is None else Access.of(identity, grants, {})
    context.connection.set_caller(None if address is None else Caller(identity, address, gateway, access))


async def _metadata(context: Context, request: Metadata) -> Packed:
    """Return the nodes, and the records of the named topics; without names, of all topics that the caller sees.

    Raise Forbidden if the caller may not see a named topic."""
    names, broker, time_slice = request.topics, context.broker, context.connection.time_slice
    access = context.entrance.access  # a gateway filters by its callers' rights itself
    records = []
    work = TOPIC_WORK if access is None else TOPIC_WORK + len(access.grants) // GRANTS
    for name in dict.fromkeys(names or ()):
        if access is None:
            break
        await time_slice.spend(work)
        if not access.sees(name[: FIXED.name_chars + 1]):
            raise access.refusal(Right.READ, name)
    for name in [*broker.catalog.topics] if names is None else dict.fromkeys(names):
        await time_slice.spend(work)
        if names is None and access is not None and not access.sees(name):
            continue
        if names is not None or name in broker.catalog.topics:  # the topic may have been deleted during `spend`
            records.append(await context.info.topics.encoded(broker.catalog.topic(name).record, time_slice))
    return Packed((msgpack.packb(context.info.nodes()), PackedArray(len(records), records)))


async def _names(context: Context, request: TopicNames) -> list[str]:
    """Return the names of topics that match one of the patterns and that the caller sees, up to `most` names."""
    time_slice = context.connection.time_slice
    await time_slice.spend(sum(map(len, request.patterns)) // PATTERN_CHARS)
    pattern, access = TopicPattern(request.patterns), context.entrance.access
    work = TOPIC_WORK if access is None else TOPIC_WORK + len(access.grants) // GRANTS
    found = []
    for name in sorted(context.broker.catalog.topics):
        if pattern.matches(name) and (access is None or access.sees(name)):
            found.append(name)
            if len(found) == request.most:
                break
        await time_slice.spend(work)
    return found


ROUTES = (
    sliced(Hello, _hello),
    sliced(Metadata, _metadata),
    sliced(TopicNames, _names),
    immediate(Prove, _prove),
    framed(OnBehalf, _on_behalf),
    immediate(Ping, lambda context, request: context.broker.clock.now_ms()),
)
