"""Say who somebody is by what it shows, and what it may do: by the identities and roles that metadata has.

A token is looked up by its SHA-256. What was found is kept until an identity or a role changes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from sandq.broker.access.jwt_tokens import Claims, JwtVerifier
from sandq.broker.catalog import Catalog
from sandq.broker.replication.replica import MetadataView
from sandq.metadata.records import IdentityRecord
from sandq.model.access import Access
from sandq.model.config_security import AUTHENTICATION
from sandq.model.errors import Unauthenticated, Unavailable
from sandq.model.principals import CERTIFICATE, JWT, TOKEN_PREFIX, principal_of, token_hash
from sandq.model.quotas import NO_QUOTA, Quota

OFF, ACCEPT, REQUIRE = range(len(AUTHENTICATION))
"""How `security.authentication` is told."""
FRESH_S: Final = 10.0
"""Who shows something is believed by metadata that is not older."""
ASK_S: Final = 2.0
"""For the leader of metadata to say how far it is, and for this node to get there."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who somebody is, by what it has shown."""

    principal: str
    access: Access
    expires_ms: int | None
    quota: Quota
    secret_hash: bytes | None = field(default=None, repr=False)
    """Of a token."""
    claims: Claims | None = None
    """Of a token of an outside issuer."""


class Authenticator:
    """Of one node. It must be told when metadata changes (`look`)."""

    def __init__(
        self,
        mode: str,
        catalog: Catalog,
        now_ms: Callable[[], int],
        jwt: JwtVerifier | None = None,
        *,
        takes_certificates: bool = True,
    ) -> None:
        """`mode`: of `AUTHENTICATION`."""
        self.mode = AUTHENTICATION.index(mode)
        self._catalog = catalog
        self._now_ms = now_ms
        self._jwt = jwt
        self.takes_certificates = takes_certificates
        self._seen: MetadataView | None = None
        self._by_hash: dict[bytes, IdentityRecord] = {}
        self._found: dict[str, tuple[Access, Quota]] = {}
        """By principal, of those that were asked for since something changed."""
        self._fresh_s = -FRESH_S

    # -- who it is ------------------------------------------------------------------------------------------------

    async def identify(self, token: str | None, certificate: str | None) -> Login | None:
        """Return who shows a token or, without one, a certificate; None: nothing that says so. Raises Unauthenticated;
        Unavailable while this node does not know."""
        if token is None and (certificate is None or not self.takes_certificates):
            return None
        if self.mode != OFF:
            await self._check_fresh()
        elif self.look() is None:
            return None  # nobody is known here yet, and everybody may do everything
        if token is None:
            return self._of_certificate(str(certificate))
        if token.startswith(TOKEN_PREFIX) or self._jwt is None:
            return self._of_token(token)
        return self._of_claims(await self._jwt.claims(token))

    def again(self, login: Login) -> Login:
        """Return what holds by now for who was let in. Raises Unauthenticated: it is to be let in no more."""
        view = self.look()
        if view is None:
            raise Unavailable("this node belongs to no cluster at present")
        if login.claims is not None:
            if login.expires_ms is not None and login.expires_ms <= self._now_ms():
                raise Unauthenticated(f"the token of {login.principal} expired: get a new one")
            return self._of_claims(login.claims)
        record = view.identities.get(login.principal)
        if record is None or record.secret_hash != login.secret_hash:
            raise Unauthenticated(f"what {login.principal} has shown was revoked")
        return self._login(record)

    def access_of(self, login: Login) -> Access | None:
        """Return what it is held to; None: nothing, everybody may do everything."""
        return None if self.mode == OFF else login.access

    def look(self) -> MetadataView | None:
        """Take in what metadata says by now."""
        view = self._catalog.known_view
        if view is None or view is self._seen:
            return view
        seen, self._seen = self._seen, view
        if seen is None or view.identities != seen.identities:
            self._by_hash = {
                record.secret_hash: record for record in view.identities.values() if record.secret_hash is not None
            }
            self._found.clear()
        elif view.roles != seen.roles:
            self._found.clear()
        return view

    def _of_token(self, token: str) -> Login:
        wanted = token_hash(token)
        record = self._by_hash.get(wanted)
        if record is None or record.secret_hash is None or not hmac.compare_digest(record.secret_hash, wanted):
            raise Unauthenticated("the token is not known here: it is wrong, or it was revoked")
        return self._login(record)

    def _of_certificate(self, name: str) -> Login | None:
        view = self._known()
        record = view.identities.get(principal_of(CERTIFICATE, name))
        if record is None and self.mode != REQUIRE:
            return None  # certificates are there for more than this, and may be shown before they are known here
        if record is None:
            raise Unauthenticated(
                f"there is no identity {principal_of(CERTIFICATE, name)!r:.300} (a certificate's name)"
            )
        return self._login(record)

    def _of_claims(self, claims: Claims) -> Login:
        view, principal = self._known(), principal_of(JWT, claims.subject)
        record = view.identities.get(principal)
        quota, expires_ms = NO_QUOTA, claims.expires_ms
        own: tuple[str, ...] = ()
        if record is not None:
            login = self._login(record)
            own, quota = record.grants, login.quota
            expires_ms = min(expires_ms, record.expires_ms) if record.expires_ms is not None else expires_ms
        access = Access.of(principal, [*own, *claims.grants], view.roles)
        return Login(principal, access, expires_ms, quota, claims=claims)

    def _login(self, record: IdentityRecord) -> Login:
        if record.expires_ms is not None and record.expires_ms <= self._now_ms():
            raise Unauthenticated(f"{record.principal} expired: whoever has the right 'security' can renew it")
        access, quota = self._rights(record)
        return Login(record.principal, access, record.expires_ms, quota, record.secret_hash)

    def _rights(self, record: IdentityRecord) -> tuple[Access, Quota]:
        found = self._found.get(record.principal)
        if found is None:
            roles: Mapping[str, tuple[str, ...]] = self._known().roles
            found = Access.of(record.principal, record.grants, roles), Quota.of(record.quota)
            self._found[record.principal] = found
        return found

    # -- what is known --------------------------------------------------------------------------------------------

    def _known(self) -> MetadataView:
        view = self.look()
        if view is None:
            raise Unavailable("this node belongs to no cluster yet, and cannot say who is who")
        return view

    async def _check_fresh(self) -> None:
        """Raises Unavailable unless this node knows all identities as they were `FRESH_S` ago."""
        self._known()
        asked_s = trio.current_time()
        if asked_s - self._fresh_s < FRESH_S:
            return
        if not self._catalog.is_alone:
            with trio.move_on_after(ASK_S) as within:
                await self._catalog.catch_up()
            if within.cancelled_caught:
                raise Unavailable(
                    "this node has not heard from those who know all identities for a while, and lets nobody in by "
                    "what it knew: ask again in a moment, or another node"
                )
        self._fresh_s = asked_s
        self.look()
