"""Tokens, identities and roles: the permissions of clients of the cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sandq.client.arguments import suggesting
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call
from sandq.model.access import parse_grant
from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.principals import TOKEN, TOKEN_BYTES, check_principal, principal_of, token_hash, token_text
from sandq.model.quotas import Quota
from sandq.model.times import Duration, duration_ms, instant_ms
from sandq.protocol.frames import Frame
from sandq.protocol.requests_access import (
    IDENTITIES_PAGE,
    Identify,
    IdentifyReply,
    IdentityDelete,
    IdentityList,
    IdentityPut,
    RoleDelete,
    RoleList,
    RolePut,
)

KEEP: Final = "keep"
"""The default of the argument `expires`: leave the expiry unchanged."""
Expiry = Duration | datetime | None
"""A duration from now, an instant, or None for no expiry."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The permissions of a client. `principal`: `token:NAME`, `jwt:SUBJECT` or `cert:NAME`."""

    principal: str
    grants: Sequence[str]
    created_ms: int
    expires_ms: int | None
    quota: Mapping[str, int]
    note: str
    used: Mapping[str, int] = field(default_factory=dict)
    """Current usage, for an identity with a quota.

    `topics`, `partitions`, `stored_bytes` and `pending_messages` cover the whole cluster. `connections`, `requests` and
    `bytes` cover only the node that replied; the last two count since it started.
    """

    @classmethod
    def from_map(cls, row: object) -> Identity:
        """Parse an identity from a reply. Raises ProtocolError."""
        kinds = {"principal": str, "grants": list, "created_ms": int, "quota": dict, "note": str}
        if not isinstance(row, dict) or not all(isinstance(row.get(name), kind) for name, kind in kinds.items()):
            raise ProtocolError("an identity is expected")
        expires_ms = row.get("expires_ms")
        if expires_ms is not None and type(expires_ms) is not int:
            raise ProtocolError("expires_ms of an identity must be a number or nil")
        used = row.get("used")
        return cls(
            row["principal"],
            row["grants"],
            row["created_ms"],
            expires_ms,
            row["quota"],
            row["note"],
            used if isinstance(used, dict) else {},
        )


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token and its identity. The cluster does not keep the text, so it cannot be shown again."""

    text: str = field(repr=False)
    identity: Identity


@dataclass(frozen=True, slots=True)
class Whoami:
    """The identity of a client, as the cluster sees it. `grants`: rights, with roles resolved; None for full access."""

    principal: str
    grants: Sequence[str] | None
    expires_ms: int | None
    quota: Mapping[str, int]


@suggesting
class AccessAdmin:
    """The part of `client.admin` for permissions. All methods except `whoami` require the right `security`."""

    _cluster: Cluster

    @timed_read
    async def whoami(self, *, timeout: Duration | None = None) -> Whoami:
        """Return the identity of this client, and its rights."""
        found = IdentifyReply.parse(await call(self._cluster, Identify(None, None)))
        return Whoami(found.principal, found.grants, found.expires_ms, found.quota)

    # -- tokens ---------------------------------------------------------------------------------------------------

    @timed_change
    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Expiry = None,
        quota: Mapping[str, Any] | None = None,
        note: str = "",
        timeout: Duration | None = None,
    ) -> NewToken:
        """Create a token, whose principal is `token:NAME`.

        `grants`: rights and roles, such as "writer:billing.*". `expires`: a duration ("90d"), an instant, or None for
        never. The cluster stores only the SHA-256 hash of the token's text.

        Raises Conflict if a token of this name exists; InvalidRequest.
        """
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        principal = check_principal(principal_of(TOKEN, name))
        given = {"secret_hash": token_hash(text), "expires_ms": _expires_ms(expires), "note": note}
        return NewToken(text, await self._put(principal, True, {**given, **_given(grants=grants, quota=quota)}))

    @timed_change
    async def rotate_token(self, name: str, *, expires: Any = KEEP, timeout: Duration | None = None) -> NewToken:
        """Replace the text of a token. The old text becomes invalid immediately. Raises NotFound."""
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        changes: dict[str, Any] = {"secret_hash": token_hash(text)}
        if expires is None or expires != KEEP:
            changes["expires_ms"] = _expires_ms(expires)
        return NewToken(text, await self._put(check_principal(principal_of(TOKEN, name)), False, changes))

    @timed_change
    async def revoke_token(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a token; clients that use it are disconnected within a second. Raises NotFound."""
        await call(self._cluster, IdentityDelete(check_principal(principal_of(TOKEN, name))), idempotent=False)

    # -- identities -----------------------------------------------------------------------------------------------

    @timed_read
    async def identities(self, *, timeout: Duration | None = None) -> list[Identity]:
        """Return all identities, ordered by principal."""
        found: list[Identity] = []
        while True:
            after = found[-1].principal if found else None
            page = _rows(await call(self._cluster, IdentityList(after, IDENTITIES_PAGE)))
            found += [Identity.from_map(row) for row in page]
            if len(page) < IDENTITIES_PAGE:
                return found

    @timed_change
    async def create_identity(
        self,
        principal: str,
        grants: Sequence[str],
        *,
        expires: Expiry = None,
        quota: Mapping[str, Any] | None = None,
        note: str = "",
        timeout: Duration | None = None,
    ) -> Identity:
        """Create an identity for a certificate (`cert:NAME`) or for a token of an external issuer (`jwt:SUBJECT`).

        Raises the same errors as `create_token`.
        """
        given = {"expires_ms": _expires_ms(expires), "note": note, **_given(grants=grants, quota=quota)}
        return await self._put(check_principal(principal), True, given)

    @timed_change
    async def update_identity(
        self,
        principal: str,
        *,
        grants: Sequence[str] | None = None,
        add: Sequence[str] | None = None,
        remove: Sequence[str] | None = None,
        expires: Any = KEEP,
        quota: Mapping[str, Any] | None = None,
        note: str | None = None,
        timeout: Duration | None = None,
    ) -> Identity:
        """Change the permissions of an identity. An omitted argument changes nothing.

        `grants` replaces all grants; `add` and `remove` change single grants. `quota`: changes the given values; None
        removes a value. Raises NotFound, InvalidRequest.
        """
        changes = _given(grants=grants, add=add, remove=remove, quota=quota, note=note)
        if expires is None or expires != KEEP:
            changes["expires_ms"] = _expires_ms(expires)
        if not changes:
            raise InvalidRequest("update_identity: give at least one change")
        return await self._put(check_principal(principal), False, changes)

    @timed_change
    async def delete_identity(self, principal: str, *, timeout: Duration | None = None) -> None:
        """Delete an identity; clients that use it are disconnected within a second. Raises NotFound."""
        await call(self._cluster, IdentityDelete(check_principal(principal)), idempotent=False)

    async def _put(self, principal: str, is_new: bool, changes: dict[str, Any]) -> Identity:
        request = IdentityPut(principal, is_new, changes)
        idempotent = not is_new or "secret_hash" in changes
        frame = await call(self._cluster, request, idempotent=idempotent)
        return Identity.from_map(frame[2] if len(frame) > 2 else None)

    # -- roles ----------------------------------------------------------------------------------------------------

    @timed_read
    async def roles(self, *, timeout: Duration | None = None) -> dict[str, list[str]]:
        """Return the grants of all custom roles, by name; built-in roles are not included."""
        found: dict[str, list[str]] = {}
        while True:
            page = _rows(await call(self._cluster, RoleList(max(found, default=None), IDENTITIES_PAGE)))
            for row in page:
                if not isinstance(row, list) or [*map(type, row)] != [str, list]:
                    raise ProtocolError("a role must be [name, grants]")
                found[row[0]] = row[1]
            if len(page) < IDENTITIES_PAGE:
                return found

    @timed_change
    async def put_role(self, name: str, grants: Sequence[str], *, timeout: Duration | None = None) -> None:
        """Create a role, or replace its grants: rights and built-in roles.

        The change applies to identities with the role within a second.
        """
        await call(self._cluster, RolePut(name, _grants("grants", grants)))

    @timed_change
    async def delete_role(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a role. Raises NotFound; Conflict while identities have it."""
        await call(self._cluster, RoleDelete(name), idempotent=False)


def _rows(frame: Frame) -> list[Any]:
    rows = frame[2] if len(frame) > 2 else None
    if type(rows) is not list:
        raise ProtocolError("a list is expected")
    return rows


def _given(**named: Any) -> dict[str, Any]:
    """Check the given arguments, and return them in the form that the request needs."""
    changes = {name: value for name, value in named.items() if value is not None}
    for name in ("grants", "add", "remove"):
        if name in changes:
            changes[name] = _grants(name, changes[name])
    if "quota" in changes:
        changes["quota"] = _quota(changes["quota"])
    return changes


def _quota(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return quotas in the form that the request needs: durations in ms, None for values to remove. Raises
    InvalidRequest."""
    record = Quota().changed(given).record()
    removed = {"max_delay_ms" if name == "max_delay" else name: None for name, value in given.items() if value is None}
    return {**record, **removed}


def _grants(name: str, grants: Sequence[str]) -> list[str]:
    if isinstance(grants, str):
        raise InvalidRequest(f"{name}: a list of grants is expected, as [{grants!r:.80}]")
    for grant in grants:
        parse_grant(grant)
    return list(grants)


def _expires_ms(expires: Expiry) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return instant_ms(expires)
    return int(time.time() * 1000) + duration_ms(expires)
