"""Requests about who somebody is, and about identities and roles.

IDENTITY_PUT, IDENTITY_DELETE, ROLE_PUT and ROLE_DELETE are for the node that leads the metadata group: another one
names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Self

from sandq.model.access import Access, parse_grant
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.limits import FIXED
from sandq.model.principals import TOKEN_CHARS
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import Bounds, Request, characters, each

IDENTITIES_PAGE: Final = 100
"""Identities, or roles, of one answer."""


def _check_text(value: Any) -> str | None:
    return None if type(value) is str else "expected str"


Principal = Annotated[str, characters(1, FIXED.principal_chars)]
PageOfIdentities = Annotated[int, Bounds(1, IDENTITIES_PAGE)]


class Identify(Request, type=Type.IDENTIFY):
    """Who shows this, and what may it do? At most one of both; with neither: who asks itself. For gateways, which let
    in who shows something to them."""

    token: Annotated[str, characters(1, TOKEN_CHARS)] | None
    certificate: Annotated[str, characters(1, FIXED.principal_chars)] | None

    def __repr__(self) -> str:
        return f"Identify(token={None if self.token is None else '...'}, certificate={self.certificate!r})"


class IdentifyReply(NamedTuple):
    """The answer to it."""

    principal: str
    grants: Sequence[str] | None
    """As rights, without roles; None: it may do everything."""
    expires_ms: int | None
    quota: Mapping[str, int]

    @property
    def access(self) -> Access | None:
        """What it may do; None: everything."""
        if self.grants is None:
            return None
        return Access.of(self.principal, self.grants, {})

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Raises ProtocolError unless it is one."""
        principal, grants, expires_ms, quota = [*frame[2:6], *4 * [None]][:4]
        if type(principal) is not str or not (expires_ms is None or type(expires_ms) is int):
            raise ProtocolError("the answer to IDENTIFY does not say who it is")
        if grants is not None and (type(grants) is not list or not all([_is_grant(grant) for grant in grants])):
            raise ProtocolError("the answer to IDENTIFY has something that is no grant")
        if type(quota) is not dict or not all([type(value) is int for value in quota.values()]):
            raise ProtocolError("the answer to IDENTIFY has something that is no quota")
        return cls(principal, grants, expires_ms, quota)


def _is_grant(text: Any) -> bool:
    try:
        parse_grant(text)
    except InvalidRequest:
        return False
    return True


class IdentityPut(Request, type=Type.IDENTITY_PUT):
    """Make an identity (`is_new`), or change one; what is not named stays. `changes`: `grants`, `add` or `remove`
    (lists of grants), `secret_hash` (SHA-256 of its token, bin), `expires_ms` (nil: never), `quota` (a map; nil takes
    one away), `note`."""

    principal: Principal
    is_new: bool
    changes: Mapping[str, Any]


class IdentityDelete(Request, type=Type.IDENTITY_DELETE):
    """Forget an identity: a token is revoked by that."""

    principal: Principal


class IdentityList(Request, type=Type.IDENTITY_LIST):
    """Identities in the order of their principals, `limit` of them at most, behind `after`."""

    after: str | None
    limit: PageOfIdentities


class RolePut(Request, type=Type.ROLE_PUT):
    """Make a role, or give it other grants."""

    name: str
    grants: Annotated[Sequence[str], each(_check_text, FIXED.grants)]


class RoleDelete(Request, type=Type.ROLE_DELETE):
    """Forget a role; not while identities have it."""

    name: str


class RoleList(Request, type=Type.ROLE_LIST):
    """Roles that somebody made in the order of their names, `limit` of them at most, behind `after`."""

    after: str | None
    limit: PageOfIdentities
