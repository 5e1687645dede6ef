"""Routes of tokens, identities and roles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path, Request

from sandq.client import Identity
from sandq.client.json_format import when
from sandq.model.access import ROLES
from sandq.model.caller import ANONYMOUS
from sandq.model.errors import NotFound
from sandq.model.times import instant_ms
from sandq.server.http import bodies_access, responses
from sandq.server.http.caller import caller_of
from sandq.server.http.gateway import Found, gateway_of
from sandq.server.http.paths import segment_router

router = segment_router("access")
TokenName = Annotated[str, Path(description="The token's name.")]
Principal = Annotated[
    str, Path(description="`token:NAME`, `cert:NAME` or `jwt:SUBJECT`, percent-encoded: a slash is `%2F`.")
]
RoleName = Annotated[str, Path(description="The role's name.")]


@router.get("/whoami", operation_id="whoami", response_model=responses.Whoami, summary="Get the caller and its rights")
async def whoami(request: Request) -> Found:
    caller = caller_of(request)
    if caller is None:
        return {"principal": ANONYMOUS, "grants": None, "quota": {}}
    grants = None if caller.access is None else [str(grant) for grant in caller.access.grants]
    return {"principal": caller.principal, "grants": grants, "quota": caller.quota.record()}


# -- tokens ------------------------------------------------------------------------------------------------------------


@router.get(
    "/tokens", operation_id="listTokens", response_model=responses.Identities, summary="List all tokens, by name"
)
async def list_tokens(request: Request) -> Found:
    """The texts of tokens are not included."""
    found = await gateway_of(request).client.admin.identities()
    return {"identities": [_shown(one) for one in found if one.principal.startswith("token:")]}


@router.post(
    "/tokens", operation_id="createToken", status_code=201, response_model=responses.NewToken, summary="Create a token"
)
async def create_token(request: Request, body: bodies_access.TokenIn) -> Found:
    """The text of the token is only in this response. 409 if there is a token with this name."""
    made = await gateway_of(request).client.admin.create_token(
        body.name, body.grants, quota=body.quota, note=body.note, **_expires(body)
    )
    return {"token": made.text, **_shown(made.identity)}


@router.post(
    "/tokens/{name}/rotate",
    operation_id="rotateToken",
    response_model=responses.NewToken,
    summary="Replace the text of a token",
)
async def rotate_token(request: Request, name: TokenName, body: bodies_access.Expiring | None = None) -> Found:
    """The old text becomes invalid at once."""
    expires = {} if body is None else _expires(body)
    made = await gateway_of(request).client.admin.rotate_token(name, **expires)
    return {"token": made.text, **_shown(made.identity)}


@router.delete("/tokens/{name}", operation_id="revokeToken", status_code=204, summary="Revoke a token")
async def revoke_token(request: Request, name: TokenName) -> None:
    """Clients that use it are disconnected within a second."""
    await gateway_of(request).client.admin.revoke_token(name)


# -- identities --------------------------------------------------------------------------------------------------------


@router.get(
    "/identities", operation_id="listIdentities", response_model=responses.Identities, summary="List all identities"
)
async def list_identities(request: Request) -> Found:
    return {"identities": [_shown(one) for one in await gateway_of(request).client.admin.identities()]}


@router.post(
    "/identities",
    operation_id="createIdentity",
    status_code=201,
    response_model=responses.Identity,
    summary="Create an identity for a certificate, or for a subject of an external issuer",
)
async def create_identity(request: Request, body: bodies_access.IdentityIn) -> Found:
    """409 if there is an identity with this principal. Use `POST /tokens` to create tokens of this cluster."""
    admin = gateway_of(request).client.admin
    return _shown(
        await admin.create_identity(body.principal, body.grants, quota=body.quota, note=body.note, **_expires(body))
    )


@router.get(
    "/identities/{principal}", operation_id="getIdentity", response_model=responses.Identity, summary="Get an identity"
)
async def get_identity(request: Request, principal: Principal) -> Found:
    for one in await gateway_of(request).client.admin.identities():
        if one.principal == principal:
            return _shown(one)
    raise NotFound(f"there is no identity {principal!r}", principal=principal)


@router.patch(
    "/identities/{principal}",
    operation_id="updateIdentity",
    response_model=responses.Identity,
    summary="Change the rights of an identity",
)
async def update_identity(request: Request, principal: Principal, body: bodies_access.IdentityChanges) -> Found:
    """Members that are not given stay."""
    given = body.model_dump(exclude_none=True, include={"grants", "add", "remove", "note"})
    if body.quota is not None:
        given["quota"] = body.quota
    admin = gateway_of(request).client.admin
    return _shown(await admin.update_identity(principal, **given, **_expires(body)))


@router.delete("/identities/{principal}", operation_id="deleteIdentity", status_code=204, summary="Delete an identity")
async def delete_identity(request: Request, principal: Principal) -> None:
    """Clients that use it are disconnected within a second."""
    await gateway_of(request).client.admin.delete_identity(principal)


# -- roles -------------------------------------------------------------------------------------------------------------


@router.get("/roles", operation_id="listRoles", response_model=responses.Roles, summary="List all roles")
async def list_roles(request: Request) -> Found:
    """Built-in roles first."""
    built_in = [{"name": name, "grants": [*map(str, rights)], "built_in": True} for name, rights in ROLES.items()]
    made = await gateway_of(request).client.admin.roles()
    return {"roles": [*built_in, *({"name": n, "grants": grants, "built_in": False} for n, grants in made.items())]}


@router.put("/roles/{name}", operation_id="putRole", status_code=204, summary="Create a role, or replace its grants")
async def put_role(request: Request, name: RoleName, body: bodies_access.RoleIn) -> None:
    """The grants of a role are rights and built-in roles."""
    await gateway_of(request).client.admin.put_role(name, body.grants)


@router.delete("/roles/{name}", operation_id="deleteRole", status_code=204, summary="Delete a role")
async def delete_role(request: Request, name: RoleName) -> None:
    """409 while identities have the role."""
    await gateway_of(request).client.admin.delete_role(name)


def _expires(body: bodies_access.Expiring) -> dict[str, Any]:
    """Return the expiry as an argument of the client."""
    found = bodies_access.expiry_of(body)
    if "expires_at" in body.model_fields_set and body.expires_at is not None:
        return {"expires": datetime.fromtimestamp(instant_ms(body.expires_at) / 1000, UTC)}
    return found


def _shown(one: Identity) -> Found:
    """Return an identity as a JSON object."""
    return {
        "principal": one.principal,
        "grants": list(one.grants),
        "created_at": when(one.created_ms),
        "expires_at": when(one.expires_ms),
        "quota": dict(one.quota),
        "note": one.note,
    }
