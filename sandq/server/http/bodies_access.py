"""Bodies of requests about tokens, identities and roles."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.server.http.bodies import Body, Duration, Instant

Grants = Annotated[
    list[str],
    Field(max_length=FIXED.grants, description='Rights and roles, with their scope: `"writer:billing.*"`.'),
]
Quotas = Annotated[dict[str, int | str | None], Field(description="Quotas by name; null removes one.")]
_EXPIRES_IN = "Time after which it expires."
_EXPIRES_AT = "Instant at which it expires; null: never."
_NOTE = "Its purpose."


class Expiring(Body):
    """When a token or an identity expires."""

    expires_in: Duration | None = Field(default=None, description=_EXPIRES_IN)
    expires_at: Instant | None = Field(default=None, description=_EXPIRES_AT)


class TokenIn(Expiring):
    """A new token."""

    name: str
    grants: Grants
    quota: Quotas = Field(default_factory=dict)
    note: str = Field(default="", max_length=FIXED.note_chars, description=_NOTE)


class IdentityIn(Expiring):
    """A new identity, for the name of a certificate or for a subject of an external issuer."""

    principal: str = Field(description="`cert:NAME` or `jwt:SUBJECT`.")
    grants: Grants
    quota: Quotas = Field(default_factory=dict)
    note: str = Field(default="", max_length=FIXED.note_chars, description=_NOTE)


class IdentityChanges(Expiring):
    """Changes of an identity. Members that are not given stay."""

    grants: Grants | None = Field(default=None, description="Replaces all grants.")
    add: Grants | None = None
    remove: Grants | None = None
    quota: Quotas | None = None
    note: str | None = Field(default=None, max_length=FIXED.note_chars, description=_NOTE)


class RoleIn(Body):
    """The grants of a role."""

    grants: Grants


def expiry_of(body: Expiring) -> dict[str, Any]:
    """Return the argument `expires` for a body, if it has an expiry. Raise InvalidRequest if it has two."""
    given = body.model_fields_set & {"expires_in", "expires_at"}
    if len(given) == 2:
        raise InvalidRequest("expires_in, expires_at: give one of them")
    if body.expires_in is not None:
        return {"expires": body.expires_in}
    if "expires_at" in given:
        return {"expires": body.expires_at}
    return {}
