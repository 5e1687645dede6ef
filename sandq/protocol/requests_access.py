"""Requests to identify a caller, and about identities and roles.

IDENTITY_PUT, IDENTITY_DELETE, ROLE_PUT and ROLE_DELETE are for the node that leads the metadata group. Any other node
replies with the leader's name.
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
"""Maximum number of identities, or roles, in one reply."""


def _check_text(value: Any) -> str | None:
    return None if type(value) is str else "expected str"


Principal = Annotated[str, characters(1, FIXED.principal_chars)]
PageOfIdentities = Annotated[int, Bounds(1, IDENTITIES_PAGE)]


class Identify(Request, type=Type.IDENTIFY):
    """Return the principal and the rights of these credentials. At most one of the two is given. Without either, the
    request is about the caller itself. Gateways use it to authenticate their callers."""

    token: Annotated[str, characters(1, TOKEN_CHARS)] | None
    certificate: Annotated[str, characters(1, FIXED.principal_chars)] | None

    def __repr__(self) -> str:
        """Return the text without the token."""
        shown = None if self.token is None else "..."
        return f"Identify(token={shown}, certificate={self.certificate!r})"


class IdentifyReply(NamedTuple):
    """The reply to IDENTIFY."""

    principal: str
    grants: Sequence[str] | None
    """Grants of rights, with roles expanded. None: full access."""
    expires_ms: int | None
    quota: Mapping[str, int]

    @property
    def access(self) -> Access | None:
        """Access of the principal. None: full access."""
        if self.grants is None:
            return None
        return Access.of(self.principal, self.grants, {})

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the reply. Raise ProtocolError if it is malformed."""
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
    """Create an identity (`is_new`), or change an existing identity. Settings that are not given are kept.

    `changes`: `grants`, `add` or `remove` (lists of grants), `secret_hash` (SHA-256 of its token, bin), `expires_ms`
    (nil: never), `quota` (a map; nil removes a quota), `note`.
    """

    principal: Principal
    is_new: bool
    changes: Mapping[str, Any]


class IdentityDelete(Request, type=Type.IDENTITY_DELETE):
    """Delete an identity. This revokes its token."""

    principal: Principal


class IdentityList(Request, type=Type.IDENTITY_LIST):
    """Return up to `limit` identities after the principal `after`, ordered by principal."""

    after: str | None
    limit: PageOfIdentities


class RolePut(Request, type=Type.ROLE_PUT):
    """Create a role, or replace its grants."""

    name: str
    grants: Annotated[Sequence[str], each(_check_text, FIXED.grants)]


class RoleDelete(Request, type=Type.ROLE_DELETE):
    """Delete a role. It is refused while identities have the role."""

    name: str


class RoleList(Request, type=Type.ROLE_LIST):
    """Return up to `limit` custom roles after the name `after`, ordered by name."""

    after: str | None
    limit: PageOfIdentities
