"""Create, change, delete and list identities and roles, on the metadata leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandq.broker.controller.metadata_changes import MetadataChanges
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.metadata.records import IdentityRecord
from sandq.model.access import check_grants, check_role
from sandq.model.caller import Caller
from sandq.model.errors import Conflict, InvalidRequest, NotFound
from sandq.model.limits import FIXED
from sandq.model.logger import get_logger
from sandq.model.principals import HASH_BYTES, TOKEN, check_principal, kind_of
from sandq.model.quotas import Quota
from sandq.model.times import TIME_MAX_MS
from sandq.protocol.requests_access import (
    IdentityDelete,
    IdentityList,
    IdentityPut,
    RoleDelete,
    RoleList,
    RolePut,
)

log = get_logger("sandq.access")

CHANGES: Final = ("grants", "add", "remove", "secret_hash", "expires_ms", "quota", "note")
"""Fields of an identity that a request may change."""


class Identities:
    """Handles requests about identities and roles.

    All methods that make changes raise the errors of `MetadataChanges`.
    """

    def __init__(self, changes: MetadataChanges) -> None:
        self._changes = changes

    async def put(self, request: IdentityPut, caller: Caller) -> dict[str, Any]:
        """Create or change an identity, and return its fields.

        Raise InvalidRequest; NotFound if the identity to change does not exist. Raise Conflict if the identity to
        create exists, or if a different identity has the same token."""
        principal = check_principal(request.principal)

        def command(view: MetadataView) -> m.Command:
            old = view.identities.get(principal)
            if old is None and not request.is_new:
                raise NotFound(f"there is no identity {principal!r}", principal=principal)
            changes, is_new = request.changes, request.is_new
            given = changes.get("secret_hash")
            others = [name for name, one in view.identities.items() if one.secret_hash == given and name != principal]
            if given is not None and others:
                # If two identities had one token, nodes might choose different identities for it. After one identity
                # was deleted, the token would still be valid for the other identity.
                raise Conflict(
                    f"{others[0]} has this token already: a token belongs to one identity", principal=others[0]
                )
            if is_new and old is not None and old.secret_hash is not None:
                # A client that missed the reply may send its request again, with the same token. Accept such a repeated
                # request.
                is_new = old.secret_hash != changes.get("secret_hash")
            return _changed(principal, is_new, old, changes, view.roles)

        record: IdentityRecord = await self._changes.change(command)
        log.info("identity made" if request.is_new else "identity changed", identity=principal, by=caller.principal)
        return row_of(record)

    async def delete(self, request: IdentityDelete, caller: Caller) -> None:
        """Delete an identity. Raise NotFound."""
        forget = m.DeleteIdentity(request.principal)
        await self._changes.change(lambda view: forget)
        log.info("identity forgotten", identity=request.principal, by=caller.principal)

    def page(self, request: IdentityList) -> list[dict[str, Any]]:
        """Return a page of identities, ordered by name, without their secrets."""
        identities = self._changes.view.identities
        return [row_of(identities[name]) for name in _page(sorted(identities), request.after, request.limit)]

    async def put_role(self, request: RolePut, caller: Caller) -> None:
        """Create a role or change its grants. Raise InvalidName, InvalidRequest."""
        name, grants = check_role(request.name), check_grants(request.grants, None)
        keep = m.PutRole(name, grants)
        await self._changes.change(lambda view: keep)
        log.info("role made or changed", role=name, by=caller.principal)

    async def delete_role(self, request: RoleDelete, caller: Caller) -> None:
        """Delete a role. Raise NotFound; Conflict if an identity has the role."""
        forget = m.DeleteRole(request.name)
        await self._changes.change(lambda view: forget)
        log.info("role forgotten", role=request.name, by=caller.principal)

    def roles(self, request: RoleList) -> list[list[Any]]:
        """Return a page of custom roles, ordered by name, with their grants."""
        roles = self._changes.view.roles
        return [[name, list(roles[name])] for name in _page(sorted(roles), request.after, request.limit)]


def row_of(record: IdentityRecord) -> dict[str, Any]:
    """Return the fields of an identity that clients may see: all except the secret."""
    return {
        "principal": record.principal,
        "grants": list(record.grants),
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "quota": dict(record.quota),
        "note": record.note,
    }


def _page(names: Sequence[str], after: str | None, limit: int) -> list[str]:
    """Return up to `limit` names that follow `after`."""
    return [name for name in names if after is None or name > after][:limit]


def _changed(
    principal: str,
    is_new: bool,
    old: IdentityRecord | None,
    changes: Mapping[str, Any],
    roles: Mapping[str, Sequence[str]],
) -> m.PutIdentity:
    """Return the command that stores the identity `principal` with these changes.

    `old`: its present record; None if there is none. `roles`: grants of the custom roles. Raise InvalidRequest."""
    unknown = [name for name in changes if name not in CHANGES]
    if unknown:
        raise InvalidRequest(
            f"{str(unknown[0])[:40]}: an identity has no such field; the fields are {', '.join(CHANGES)}"
        )
    grants = changes.get("grants", list(old.grants) if old is not None else [])
    # A new identity needs a grant, in `grants` or `add`. An existing identity may lose all of its grants.
    if "grants" in changes or is_new:
        grants = check_grants(grants, roles) if grants or (is_new and "add" not in changes) else []
    if "add" in changes:
        grants = [*dict.fromkeys([*grants, *check_grants(changes["add"], roles)])]
        if len(grants) > FIXED.grants:
            raise InvalidRequest(f"grants: {len(grants)}, and an identity has {FIXED.grants} at most")
    if "remove" in changes:
        grants = _without(grants, changes["remove"])
    secret_hash = changes.get("secret_hash", old.secret_hash if old is not None else None)
    if secret_hash is not None and (type(secret_hash) is not bytes or len(secret_hash) != HASH_BYTES):
        raise InvalidRequest(f"secret_hash: {HASH_BYTES} bytes are expected, the SHA-256 of the token")
    if (secret_hash is not None) != (kind_of(principal) == TOKEN):
        raise InvalidRequest("secret_hash: required for a token identity, not allowed for others")
    expires_ms = changes.get("expires_ms", old.expires_ms if old is not None else None)
    if expires_ms is not None and (type(expires_ms) is not int or not 0 <= expires_ms <= TIME_MAX_MS):
        raise InvalidRequest("expires_ms: an instant in milliseconds is expected, or nil")
    quota = changes.get("quota", {})
    if not isinstance(quota, dict):
        raise InvalidRequest("quota: a map is expected")
    kept = Quota.of(old.quota if old is not None else {}).changed(quota).record()
    note = changes.get("note", old.note if old is not None else "")
    if not isinstance(note, str) or len(note) > FIXED.note_chars:
        raise InvalidRequest(f"note: text of {FIXED.note_chars} characters at most is expected")
    return m.PutIdentity(principal, is_new, grants, secret_hash, expires_ms, kept, note)


def _without(grants: Sequence[str], remove: Any) -> list[str]:
    """Return the grants without those in `remove`.

    Raise InvalidRequest if a grant in `remove` is not among the grants. Otherwise, after a typing error, the grant that
    should be removed would silently stay.
    """
    if not isinstance(remove, list):
        raise InvalidRequest("remove: a list of grants is expected")
    absent = [grant for grant in remove if grant not in grants]
    if absent:
        has = ", ".join(grants) or "none"
        raise InvalidRequest(f"remove: it has no grant {str(absent[0])[:80]!r}; it has {has[:300]}")
    return [grant for grant in grants if grant not in remove]
