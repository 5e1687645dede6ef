"""What requests about tokens, identities and roles carry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.server.http.bodies import Body, Duration, Instant

Grants = Annotated[
    list[str],
    Field(max_length=FIXED.grants, description='Rights and roles, and what they are for: `"writer:billing.*"`.'),
]
Quotas = Annotated[dict[str, int | str | None], Field(description="By name; null takes one away.")]
_EXPIRES_IN = "It expires after so long."
_EXPIRES_AT = "It expires then; null: never."
_NOTE = "What it is for."


class Expiring(Body):
    """Until when something holds."""

    expires_in: Duration | None = Field(default=None, description=_EXPIRES_IN)
    expires_at: Instant | None = Field(default=None, description=_EXPIRES_AT)


class TokenIn(Expiring):
    """A token that is made."""

    name: str
    grants: Grants
    quota: Quotas = Field(default_factory=dict)
    note: str = Field(default="", max_length=FIXED.note_chars, description=_NOTE)


class IdentityIn(Expiring):
    """An identity that is made, of a certificate's name or of an outside issuer's subject."""

    principal: str = Field(description="`cert:NAME` or `jwt:SUBJECT`.")
    grants: Grants
    quota: Quotas = Field(default_factory=dict)
    note: str = Field(default="", max_length=FIXED.note_chars, description=_NOTE)


class IdentityChanges(Expiring):
    """What is to change of an identity; what is not named stays."""

    grants: Grants | None = Field(default=None, description="All that it has then.")
    add: Grants | None = None
    remove: Grants | None = None
    quota: Quotas | None = None
    note: str | None = Field(default=None, max_length=FIXED.note_chars, description=_NOTE)


class RoleIn(Body):
    """What a role grants."""

    grants: Grants


def expiry_of(body: Expiring) -> dict[str, Any]:
    """The argument `expires` that a body stands for, if it says anything of it. Raises InvalidRequest for both."""
    said = body.model_fields_set & {"expires_in", "expires_at"}
    if len(said) == 2:
        raise InvalidRequest("expires_in, expires_at: one of both")
    if body.expires_in is not None:
        return {"expires": body.expires_in}
    if "expires_at" in said:
        return {"expires": body.expires_at}
    return {}
