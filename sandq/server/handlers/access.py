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


ROUTES = (
    answered(Identify, _identify),
    answered(IdentityPut, lambda at, request: at.info.identities.put(request, at.caller)),
    answered(IdentityDelete, lambda at, request: at.info.identities.delete(request, at.caller)),
    told(IdentityList, lambda at, request: at.info.identities.page(request)),
    answered(RolePut, lambda at, request: at.info.identities.put_role(request, at.caller)),
    answered(RoleDelete, lambda at, request: at.info.identities.delete_role(request, at.caller)),
    told(RoleList, lambda at, request: at.info.identities.roles(request)),
)
