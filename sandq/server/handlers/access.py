"""Requests about who somebody is, and about identities and roles."""

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
from sandq.server.handlers.routes import Context, answered, told
from sandq.server.quota_meters import Meter, QuotaMeters


async def _identify(at: Context, request: Identify) -> tuple[Any, ...]:
    authenticator = at.info.authenticator
    if request.token is not None and request.certificate is not None:
        raise InvalidRequest("IDENTIFY: a token or the name of a certificate, not both")
    if request.token is None and request.certificate is None:
        return _told(at, at.caller.principal, at.connection.login)
    login = await authenticator.identify(request.token, request.certificate)
    if login is None:
        raise Unauthenticated("a certificate's name says nothing of who somebody is here")
    return _told(at, login.principal, login)


def _told(at: Context, principal: str, login: Login | None) -> tuple[Any, ...]:
    if login is None:
        return principal, None, None, {}
    access = at.info.authenticator.access_of(login)
    grants = None if access is None else [str(grant) for grant in access.grants]
    return principal, grants, login.expires_ms, login.quota.record()


def _identities(at: Context, request: IdentityList) -> list[dict[str, Any]]:
    """With what they have, of those that have a quota."""
    rows, info = at.info.identities.page(request), at.info
    bounded = {row["principal"] for row in rows if row["quota"]}
    if bounded:
        held = {} if info.usage is None else info.usage.held
        used = use_of(bounded, at.broker.metadata.topics.values(), held, info.quotas)
        rows = [{**row, "used": used[row["principal"]]} if row["quota"] else row for row in rows]
    return rows


def use_of(
    principals: Collection[str], topics: Collection[Topic], held: Mapping[str, Held], meters: QuotaMeters
) -> dict[str, dict[str, int]]:
    """Return what these have, by principal: topics and partitions that they own; what their topics hold, of those whose
    quota bounds it; connections to this node, and what they asked of it since it started."""
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
    answered(IdentityPut, lambda at, request: at.info.identities.put(request, at.caller)),
    answered(IdentityDelete, lambda at, request: at.info.identities.delete(request, at.caller)),
    told(IdentityList, _identities),
    answered(RolePut, lambda at, request: at.info.identities.put_role(request, at.caller)),
    answered(RoleDelete, lambda at, request: at.info.identities.delete_role(request, at.caller)),
    told(RoleList, lambda at, request: at.info.identities.roles(request)),
)
