"""Tokens, identities and roles: who may do what with the cluster."""

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
"""What an identity has stays as it is."""
Expiry = Duration | datetime | None
"""After so long, at an instant, or never."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may do what. `principal`: `token:NAME`, `jwt:SUBJECT` or `cert:NAME`."""

    principal: str
    grants: Sequence[str]
    created_ms: int
    expires_ms: int | None
    quota: Mapping[str, int]
    note: str
    used: Mapping[str, int] = field(default_factory=dict)
    """What one that has a quota has: `topics`, `partitions`, `stored_bytes`, `pending_messages` of the cluster; of the
    node that was asked `connections`, and `requests` and `bytes` since that started."""

    @classmethod
    def from_map(cls, row: object) -> Identity:
        """Raises ProtocolError unless it is one."""
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
    """A token that was made, and the identity that it is of: nobody else knows the text, and it is never told again."""

    text: str = field(repr=False)
    identity: Identity


@dataclass(frozen=True, slots=True)
class Whoami:
    """Who a client is to the cluster. `grants`: rights without roles; None: it may do everything."""

    principal: str
    grants: Sequence[str] | None
    expires_ms: int | None
    quota: Mapping[str, int]


@suggesting
class AccessAdmin:
    """The part of `client.admin` that is about who may do what. All but `whoami` need the right `security`."""

    _cluster: Cluster

    @timed_read
    async def whoami(self, *, timeout: Duration | None = None) -> Whoami:
        """Who this client is to the cluster, and what it may do."""
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
        """Make a token, whose principal is `token:NAME`. `grants`: rights and roles, as "writer:billing.*"; `expires`:
        after so long ("90d"), at an instant, or (None) never. The cluster keeps no more of its text than its SHA-256.

        Raises Conflict when there is one of this name; InvalidRequest.
        """
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        principal = check_principal(principal_of(TOKEN, name))
        given = {"secret_hash": token_hash(text), "expires_ms": _expires_ms(expires), "note": note}
        return NewToken(text, await self._put(principal, True, {**given, **_given(grants=grants, quota=quota)}))

    @timed_change
    async def rotate_token(self, name: str, *, expires: Any = KEEP, timeout: Duration | None = None) -> NewToken:
        """Give a token another text; the old one ends at once. Raises NotFound."""
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        changes: dict[str, Any] = {"secret_hash": token_hash(text)}
        if expires is None or expires != KEEP:
            changes["expires_ms"] = _expires_ms(expires)
        return NewToken(text, await self._put(check_principal(principal_of(TOKEN, name)), False, changes))

    @timed_change
    async def revoke_token(self, name: str, *, timeout: Duration | None = None) -> None:
        """End a token: whoever uses it is cut off within a second. Raises NotFound."""
        await call(self._cluster, IdentityDelete(check_principal(principal_of(TOKEN, name))), idempotent=False)

    # -- identities -----------------------------------------------------------------------------------------------

    @timed_read
    async def identities(self, *, timeout: Duration | None = None) -> list[Identity]:
        """All identities, by principal."""
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
        """Let in who shows a certificate (`cert:NAME`), or a token of an outside issuer (`jwt:SUBJECT`). Raises as
        `create_token`."""
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
        """Change what an identity may do, and what is not named stays: `grants` are all that it has then, `add` and
        `remove` change those. `quota`: of these names; None takes one away. Raises NotFound, InvalidRequest."""
        changes = _given(grants=grants, add=add, remove=remove, quota=quota, note=note)
        if expires is None or expires != KEEP:
            changes["expires_ms"] = _expires_ms(expires)
        if not changes:
            raise InvalidRequest("update_identity: say what is to change")
        return await self._put(check_principal(principal), False, changes)

    @timed_change
    async def delete_identity(self, principal: str, *, timeout: Duration | None = None) -> None:
        """Forget an identity: who shows it is cut off within a second. Raises NotFound."""
        await call(self._cluster, IdentityDelete(check_principal(principal)), idempotent=False)

    async def _put(self, principal: str, is_new: bool, changes: dict[str, Any]) -> Identity:
        request = IdentityPut(principal, is_new, changes)
        idempotent = not is_new or "secret_hash" in changes
        frame = await call(self._cluster, request, idempotent=idempotent)
        return Identity.from_map(frame[2] if len(frame) > 2 else None)

    # -- roles ----------------------------------------------------------------------------------------------------

    @timed_read
    async def roles(self, *, timeout: Duration | None = None) -> dict[str, list[str]]:
        """Grants of the roles that somebody made, by name; those that are built in are not among them."""
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
        """Make a role, or give it other grants: rights, and roles that are built in. Who has it has these within a
        second."""
        await call(self._cluster, RolePut(name, _grants("grants", grants)))

    @timed_change
    async def delete_role(self, name: str, *, timeout: Duration | None = None) -> None:
        """Forget a role. Raises NotFound; Conflict while identities have it."""
        await call(self._cluster, RoleDelete(name), idempotent=False)


def _rows(frame: Frame) -> list[Any]:
    rows = frame[2] if len(frame) > 2 else None
    if type(rows) is not list:
        raise ProtocolError("a list is expected")
    return rows


def _given(**named: Any) -> dict[str, Any]:
    """What was said of an identity, as the request has it."""
    changes = {name: value for name, value in named.items() if value is not None}
    for name in ("grants", "add", "remove"):
        if name in changes:
            changes[name] = _grants(name, changes[name])
    if "quota" in changes:
        changes["quota"] = _quota(changes["quota"])
    return changes


def _quota(given: Mapping[str, Any]) -> dict[str, Any]:
    """Quotas, where a duration is in milliseconds. Raises InvalidRequest."""
    record = Quota().changed(given).record()
    taken = {"max_delay_ms" if name == "max_delay" else name: None for name, value in given.items() if value is None}
    return {**record, **taken}


def _grants(what: str, grants: Sequence[str]) -> list[str]:
    if isinstance(grants, str):
        raise InvalidRequest(f"{what}: a list of grants is expected, as [{grants!r:.80}]")
    for grant in grants:
        parse_grant(grant)
    return list(grants)


def _expires_ms(expires: Expiry) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return instant_ms(expires)
    return int(time.time() * 1000) + duration_ms(expires)
