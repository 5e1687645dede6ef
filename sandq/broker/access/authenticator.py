"""Authenticate clients by tokens or certificates, and determine their rights from the identities and roles in metadata.

A token is looked up by its SHA-256. Results are cached until an identity or a role changes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.replication.replica import MetadataView
from sandq.metadata.records import IdentityRecord
from sandq.model.access import Access
from sandq.model.config_security import AUTHENTICATION
from sandq.model.errors import Unauthenticated, Unavailable
from sandq.model.principals import CERTIFICATE, JWT, TOKEN_PREFIX, principal_of, token_hash
from sandq.model.quotas import NO_QUOTA, Quota

if TYPE_CHECKING:
    from sandq.broker.access.jwt_tokens import Claims, JwtVerifier

OFF, ACCEPT, REQUIRE = range(len(AUTHENTICATION))
"""Modes of `security.authentication`."""
FRESH_S: Final = 10.0
"""Maximum age in s of the metadata with which a client is authenticated."""
ASK_S: Final = 2.0
"""Time in s within which the metadata leader must reply and this node must catch up."""


@dataclass(frozen=True, slots=True)
class Login:
    """An authenticated client."""

    principal: str
    access: Access
    expires_ms: int | None
    quota: Quota
    secret_hash: bytes | None = field(default=None, repr=False)
    """SHA-256 of the client's token, if sandq issued the token."""
    claims: Claims | None = None
    """Claims of the client's token, if an external issuer issued the token."""


class Authenticator:
    """Authenticates the clients of one node. Call `refresh` when metadata has changed."""

    def __init__(
        self,
        mode: str,
        catalog: Catalog,
        now_ms: Callable[[], int],
        jwt: JwtVerifier | None = None,
        *,
        takes_certificates: bool = True,
    ) -> None:
        """`mode`: one of `AUTHENTICATION`."""
        self.mode = AUTHENTICATION.index(mode)
        self._catalog = catalog
        self._now_ms = now_ms
        self._jwt = jwt
        self.takes_certificates = takes_certificates
        self._seen: MetadataView | None = None
        self._by_hash: dict[bytes, IdentityRecord] = {}
        self._found: dict[str, tuple[Access, Quota]] = {}
        """Rights and quotas by principal. Cached until identities or roles change."""
        self._fresh_s = -FRESH_S
        """Time on trio's clock, in s. The metadata here includes all changes that were acknowledged before it."""

    # -- authentication -------------------------------------------------------------------------------------------

    async def identify(self, token: str | None, certificate: str | None) -> Login | None:
        """Authenticate a client by its token or, without one, by its certificate.

        Return None if the client shows neither, or a certificate that is not used or has no identity. If `mode` is OFF,
        also return None while this node knows no metadata.

        Raise Unauthenticated; Unavailable if the identities known here may be outdated.
        """
        if token is None and (certificate is None or not self.takes_certificates):
            return None
        if self.mode != OFF:
            await self._check_fresh()
        elif self.refresh() is None:
            return None  # this node knows no identities yet; every client has full access in this mode
        if token is None:
            return self._of_certificate(str(certificate))
        if token.startswith(TOKEN_PREFIX) or self._jwt is None:
            return self._of_token(token)
        return self._of_claims(await self._jwt.claims(token))

    def again(self, login: Login) -> Login:
        """Return the current login of a connected client, for the present identities and roles.

        Raise Unauthenticated if the login is no longer valid; Unavailable while this node knows no metadata."""
        view = self.refresh()
        if view is None:
            raise Unavailable("this node belongs to no cluster at present")
        if login.claims is not None:
            if login.expires_ms is not None and login.expires_ms <= self._now_ms():
                raise Unauthenticated(f"the token of {login.principal} expired: get a new one")
            return self._of_claims(login.claims)
        record = view.identities.get(login.principal)
        if record is None or record.secret_hash != login.secret_hash:
            raise Unauthenticated(f"the token or certificate of {login.principal} was revoked")
        return self._login(record)

    def access_of(self, login: Login) -> Access | None:
        """Return the rights that apply to a client; None if the client has full access."""
        return None if self.mode == OFF else login.access

    def refresh(self) -> MetadataView | None:
        """Return the current metadata. If identities or roles have changed, drop the cached results."""
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
        """Return the login of a sandq token."""
        wanted = token_hash(token)
        record = self._by_hash.get(wanted)
        if record is None or record.secret_hash is None or not hmac.compare_digest(record.secret_hash, wanted):
            raise Unauthenticated("the token is unknown: it is wrong, or it was revoked")
        return self._login(record)

    def _of_certificate(self, name: str) -> Login | None:
        """Return the login of the certificate with this name.

        If there is no identity for this certificate, return None, or raise Unauthenticated if `mode` is REQUIRE."""
        view = self._known()
        record = view.identities.get(principal_of(CERTIFICATE, name))
        if record is None and self.mode != REQUIRE:
            return None  # a certificate may serve other purposes, or may get its identity later
        if record is None:
            raise Unauthenticated(
                f"there is no identity {principal_of(CERTIFICATE, name)!r:.300} (a certificate's name)"
            )
        return self._login(record)

    def _of_claims(self, claims: Claims) -> Login:
        """Return the login for the claims of an external issuer's token.

        If the token's subject also has an identity in metadata, add its grants, use its quota and the earlier expiry
        time."""
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
        """Return the login of an identity. Raise Unauthenticated if the identity has expired."""
        if record.expires_ms is not None and record.expires_ms <= self._now_ms():
            raise Unauthenticated(f"{record.principal} expired: a client with the right 'security' can renew it")
        access, quota = self._rights(record)
        return Login(record.principal, access, record.expires_ms, quota, record.secret_hash)

    def _rights(self, record: IdentityRecord) -> tuple[Access, Quota]:
        """Return the rights and the quota of an identity."""
        found = self._found.get(record.principal)
        if found is None:
            roles: Mapping[str, tuple[str, ...]] = self._known().roles
            found = Access.of(record.principal, record.grants, roles), Quota.of(record.quota)
            self._found[record.principal] = found
        return found

    # -- freshness of the metadata --------------------------------------------------------------------------------

    def _known(self) -> MetadataView:
        """Return the metadata. Raise Unavailable while this node belongs to no cluster."""
        view = self.refresh()
        if view is None:
            raise Unavailable("this node belongs to no cluster yet, and knows no identities")
        return view

    async def _check_fresh(self) -> None:
        """If the metadata here may be older than `FRESH_S`, bring it up to date. Raise Unavailable if that fails."""
        self._known()
        asked_s = trio.current_time()
        if asked_s - self._fresh_s < FRESH_S:
            return
        if not self._catalog.is_alone:
            with trio.move_on_after(ASK_S) as within:
                await self._catalog.catch_up()
            if within.cancelled_caught:
                raise Unavailable(
                    "this node could not refresh the identities for a while, so it accepts no logins now: ask again in "
                    "a moment, or ask a different node"
                )
        self._fresh_s = asked_s
        self.refresh()
