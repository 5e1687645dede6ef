"""Requests about who somebody is, and about identities and roles."""

from __future__ import annotations

from typing import Any

from sandq.broker.access.authenticator import Login
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
from sandq.server.quota_use import use_of


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


ROUTES = (
    answered(Identify, _identify),
    answered(IdentityPut, lambda at, request: at.info.identities.put(request, at.caller)),
    answered(IdentityDelete, lambda at, request: at.info.identities.delete(request, at.caller)),
    told(IdentityList, _identities),
    answered(RolePut, lambda at, request: at.info.identities.put_role(request, at.caller)),
    answered(RoleDelete, lambda at, request: at.info.identities.delete_role(request, at.caller)),
    told(RoleList, lambda at, request: at.info.identities.roles(request)),
)
