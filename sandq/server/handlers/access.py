"""Handle requests about the caller's identity, and about identities and roles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sandq.broker.access.authenticator import Login
from sandq.broker.owner_usage import NOTHING, Held
from sandq.metadata.records import Topic
from sandq.model.errors import InvalidRequest, Unauthenticated
from sandq.protocol.requests_access import (
    Identify,
    IdentityDelete,
    IdentityList,
    IdentityPut,
    RoleDelete,
    RoleList,
    RolePut,
)
from sandq.server.handlers.routes import Context, answered, immediate
from sandq.server.quota_meters import Meter, QuotaMeters


async def _identify(context: Context, request: Identify) -> tuple[Any, ...]:
    """Return the identity with these credentials; without credentials, the identity of the caller."""
    authenticator = context.info.authenticator
    if request.token is not None and request.certificate is not None:
        raise InvalidRequest("IDENTIFY: give a token or the name of a certificate, not both")
    if request.token is None and request.certificate is None:
        return _fields(context, context.caller.principal, context.connection.login)
    login = await authenticator.identify(request.token, request.certificate)
    if login is None:
        raise Unauthenticated("the certificate's name is no identity here, or certificates do not identify clients")
    return _fields(context, login.principal, login)


def _fields(context: Context, principal: str, login: Login | None) -> tuple[Any, ...]:
    """Return the fields of the reply for a principal: its name, grants, expiry and quota."""
    if login is None:
        return principal, None, None, {}
    access = context.info.authenticator.access_of(login)
    grants = None if access is None else [str(grant) for grant in access.grants]
    return principal, grants, login.expires_ms, login.quota.record()


def _identities(context: Context, request: IdentityList) -> list[dict[str, Any]]:
    """Return a page of identities, with the usage of each that has a quota."""
    rows, info = context.info.identities.page(request), context.info
    bounded = {row["principal"] for row in rows if row["quota"]}
    if bounded:
        held = {} if info.usage is None else info.usage.held
        used = use_of(bounded, context.broker.metadata.topics.values(), held, info.quotas)
        rows = [{**row, "used": used[row["principal"]]} if row["quota"] else row for row in rows]
    return rows


def use_of(
    principals: Collection[str], topics: Collection[Topic], held: Mapping[str, Held], meters: QuotaMeters
) -> dict[str, dict[str, int]]:
    """Return the usage of identities, by principal.

    The topics and partitions that the principal owns are counted, and, if its quota limits storage, the storage of
    these topics. Connections, requests and bytes are counted on this node only, since it started."""
    owned, partitions = Counter[str](), Counter[str]()
    for topic in topics:
        if topic.owner is not None and topic.owner in principals:
            owned[topic.owner] += 1
            partitions[topic.owner] += len(topic.partitions)
    found = {}
    for name in principals:
        meter, holds = meters.meters.get(name) or Meter(), held.get(name, NOTHING)
        found[name] = {
            "topics": owned[name],
            "partitions": partitions[name],
            **holds._asdict(),
            "connections": meter.connections,
            "requests": meter.requests,
            "bytes": meter.bytes,
        }
    return found


ROUTES = (
    answered(Identify, _identify),
    answered(IdentityPut, lambda context, request: context.info.identities.put(request, context.caller)),
    answered(IdentityDelete, lambda context, request: context.info.identities.delete(request, context.caller)),
    immediate(IdentityList, _identities),
    answered(RolePut, lambda context, request: context.info.identities.put_role(request, context.caller)),
    answered(RoleDelete, lambda context, request: context.info.identities.delete_role(request, context.caller)),
    immediate(RoleList, lambda context, request: context.info.identities.roles(request)),
)
