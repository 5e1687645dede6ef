"""Verify tokens of an external issuer (JWT): signature, audience and expiry.

The keys come from a file or a URL. If the keys are old, or a token names an unknown key, the URL is fetched again, at
most every `FETCH_LEAST_S` seconds. Only asymmetric algorithms are accepted. With a symmetric algorithm, anyone who can
verify tokens could also forge them.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
import trio

from sandq.model.access import parse_grant
from sandq.model.config_security import JwtSection
from sandq.model.errors import InvalidRequest, StartupError, Unauthenticated, Unavailable
from sandq.model.limits import FIXED
from sandq.model.logger import get_logger
from sandq.model.principals import JWT, principal_of
from sandq.model.push_targets import shown_url

log = get_logger("sandq.access")

KEYS_BYTES: Final = 1 << 20
"""Maximum size in bytes of a file or a reply with keys."""
KEYS: Final = 100
"""Maximum number of keys in a JWKS, and of keys that are tried for a token without a key id."""
FETCH_S: Final = 5.0
"""Time limit in s for the issuer to return its keys."""
FETCH_LEAST_S: Final = 30.0
"""Minimum time in s between two attempts to fetch the keys."""
KEPT_S: Final = 600.0
"""Age in s above which the keys are fetched again."""
STALE_S: Final = 86_400.0
"""Age in s up to which keys are used if new keys cannot be fetched."""
CHECKED: Final = 1000
"""Maximum number of verified tokens that are remembered."""
_CLAIMS: Final = ("exp", "sub", "iss", "aud")


class Claims(NamedTuple):
    """The claims of a token."""

    subject: str
    grants: tuple[str, ...]
    expires_ms: int
    """Expiry time in epoch ms. The allowed clock difference (`leeway_ms`) is added already."""


class JwtVerifier:
    """Verifies tokens of one issuer. `fetch(url)` returns the content of a URL, or raises OSError or ValueError."""

    def __init__(
        self, config: JwtSection, now_ms: Callable[[], int], fetch: Callable[[str], Awaitable[bytes]] | None = None
    ) -> None:
        """Raise StartupError if the file of keys is invalid."""
        assert config.issuer is not None
        self._config = config
        self._now_ms = now_ms
        self._fetch = fetch or _fetch_in_thread
        self._keys: dict[str | None, list[Any]] = {}
        """Keys by key id. Keys without an id have the key id None."""
        self._fetched_s = self._tried_s = -FETCH_LEAST_S
        """Times on trio's clock, in s, of the last successful fetch and of the last attempt."""
        self._one = trio.Lock()
        self._checked: OrderedDict[bytes, Claims] = OrderedDict()
        if config.keys_file is not None:
            try:
                self._keys = _read_keys(_read(config.keys_file))
            except (OSError, ValueError) as error:
                raise StartupError(f"jwt.keys_file {config.keys_file}: {error}") from None

    async def claims(self, text: str) -> Claims:
        """Return the claims of a token.

        Raise Unauthenticated; Unavailable while the issuer's keys cannot be fetched."""
        await self._renew_old_keys()
        digest = hashlib.sha256(text.encode()).digest()
        claims = self._checked.get(digest)
        if claims is None:
            claims = await self._check(text)
            self._checked[digest] = claims
            if len(self._checked) > CHECKED:
                self._checked.popitem(last=False)
        if claims.expires_ms <= self._now_ms():
            raise Unauthenticated(f"the token of {principal_of(JWT, claims.subject)} expired: get a new one")
        return claims

    async def _check(self, text: str) -> Claims:
        """Return the claims of a token after verifying its signature, issuer and audience. Raise Unauthenticated."""
        try:
            head = jwt.get_unverified_header(text)
        except jwt.PyJWTError as error:
            raise _refused(error) from None
        algorithm, key_id = head.get("alg"), head.get("kid")
        if algorithm not in self._config.algorithms:
            raise Unauthenticated(f"the token is signed by {str(algorithm)[:20]!r}, which is not in jwt.algorithms")
        named = await self._keys_of(key_id if isinstance(key_id, str) else None)
        keys: list[Any] = [key for key in named if isinstance(key, _kind_of(algorithm))]
        problem: Exception = jwt.InvalidTokenError("the issuer has no such key")
        for key in keys:
            try:
                said = jwt.decode(
                    text,
                    key,
                    algorithms=[algorithm],
                    audience=self._config.audience,
                    issuer=self._config.issuer,
                    leeway=self._config.leeway_ms / 1000,
                    # The times are checked later, against this node's guarded clock, which ignores jumps of the wall
                    # clock.
                    options={"require": list(_CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
                )
            except (jwt.PyJWTError, TypeError, ValueError) as error:
                problem = error
                continue
            return self._claims(said)
        raise _refused(problem)

    def _claims(self, said: dict[str, Any]) -> Claims:
        """Check the values of decoded claims, and return them as `Claims`. Raise Unauthenticated."""
        subject, expires, begins = said["sub"], said["exp"], said.get("nbf", 0)
        if not isinstance(subject, str) or not subject.isprintable() or not subject:
            raise Unauthenticated("the token's subject (sub) is not printable text")
        if len(principal_of(JWT, subject)) > FIXED.principal_chars:
            raise Unauthenticated(f"the token's subject has more than {FIXED.principal_chars} characters")
        if not _is_time(expires) or not _is_time(begins):
            raise Unauthenticated("the token's times (exp, nbf) are not seconds since 1970")
        if begins * 1000 > self._now_ms() + self._config.leeway_ms:
            raise Unauthenticated("the token is not valid yet (nbf)")
        claim = self._config.grants_claim
        grants = said.get(claim, [])
        if not isinstance(grants, list) or len(grants) > FIXED.grants:
            raise Unauthenticated(f"the token's claim {claim} is not a list of at most {FIXED.grants} grants")
        try:
            for grant in grants:
                parse_grant(grant)
        except InvalidRequest as error:
            raise Unauthenticated(f"the token's claim {claim}: {error.message}") from None
        return Claims(subject, tuple(grants), int(expires * 1000) + self._config.leeway_ms)

    # -- keys -----------------------------------------------------------------------------------------------------

    async def _renew_old_keys(self) -> None:
        """If the keys are old, fetch them again.

        If no fetch has succeeded for `STALE_S`, forget the verified tokens, because their keys may have been
        revoked."""
        url = self._config.jwks_url
        if url is not None and trio.current_time() - self._fetched_s > KEPT_S:
            await self._renew(url)
            if trio.current_time() - self._fetched_s > STALE_S:
                self._checked.clear()

    async def _keys_of(self, key_id: str | None) -> list[Any]:
        """Return the keys that may have signed a token with this key id.

        If none of the known keys has this id, fetch the issuer's keys. Raise Unavailable if the keys cannot be
        fetched."""
        url = self._config.jwks_url
        if url is not None:
            if not self._named(key_id):
                await self._renew(url)
            if trio.current_time() - self._fetched_s > STALE_S or not self._keys:
                raise Unavailable(
                    f"the keys of issuer {self._config.issuer} cannot be fetched at present (jwt.jwks_url)"
                )
        return self._named(key_id)

    def _named(self, key_id: str | None) -> list[Any]:
        """Return the known keys with this id, and all keys without an id. If `key_id` is None, return up to `KEYS`
        known keys."""
        if key_id is None:
            return [key for keys in self._keys.values() for key in keys][:KEYS]
        return [*self._keys.get(key_id, ()), *self._keys.get(None, ())]

    async def _renew(self, url: str) -> None:
        """Fetch the keys, at most every `FETCH_LEAST_S` seconds. If fetching fails, keep the old keys."""
        async with self._one:
            if trio.current_time() - self._tried_s < FETCH_LEAST_S:
                return
            self._tried_s = trio.current_time()
            try:
                with trio.fail_after(FETCH_S):
                    text = await self._fetch(url)
                keys = _read_keys(text)
            except Exception as error:  # the content of the URL is not under this node's control
                log.warning(
                    "the keys of the issuer of tokens could not be read",
                    url=shown_url(url),
                    error=str(error)[:200] or type(error).__name__,
                )
                return
            self._keys, self._fetched_s = keys, self._tried_s
            self._checked.clear()  # the new keys may lack a key that verified a token


def _kind_of(algorithm: str) -> tuple[type, ...]:
    """Return the classes of public keys that can verify signatures of an algorithm."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if algorithm == "EdDSA":
        return ed25519.Ed25519PublicKey, ed448.Ed448PublicKey
    return (ec.EllipticCurvePublicKey,) if algorithm.startswith("ES") else (rsa.RSAPublicKey,)


def _refused(error: Exception) -> Unauthenticated:
    return Unauthenticated(f"the token is refused: {str(error)[:200] or type(error).__name__}")


def _is_time(value: object) -> bool:
    """Return whether a value can be a time in s since 1970."""
    return type(value) in (int, float) and 0 <= value < 1 << 40  # type: ignore[operator]


def _read(path: Path) -> bytes:
    """Return the content of a file. Raise OSError; ValueError if the file is too large."""
    with path.open("rb") as file:
        content = file.read(KEYS_BYTES + 1)
    if len(content) > KEYS_BYTES:
        raise ValueError(f"it has more than {KEYS_BYTES} bytes")
    return content


def _read_keys(content: bytes) -> dict[str | None, list[Any]]:
    """Parse public keys, and return them by key id.

    `content`: PEM or a JWKS. The id of a key in PEM is None, as for keys of a JWKS without an id. Raise ValueError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys: dict[str | None, list[Any]] = {}
    if b"-----BEGIN" in content:
        if b"PRIVATE KEY" in content:
            raise ValueError("it contains a private key: provide the public one")
        for part in content.split(b"-----END")[:-1]:
            begin = part.index(b"-----BEGIN")
            kind = part[begin + len(b"-----BEGIN") :].split(b"-----")[0]
            try:
                public = load_pem_public_key(part[begin:] + b"-----END" + kind + b"-----\n")
            except UnsupportedAlgorithm as error:
                raise ValueError(str(error)) from None
            keys.setdefault(None, []).append(public)
        if not keys:
            raise ValueError("it has no complete key")
        return keys
    try:
        rows = json.loads(content)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it is neither PEM nor a set of keys (JWKS)") from None
    if not isinstance(rows, list) or len(rows) > KEYS:
        raise ValueError(f"a set of keys must be a list of at most {KEYS} keys")
    for row in rows:
        if not isinstance(row, dict) or row.get("use", "sig") != "sig" or row.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK.from_dict(row)
        except (jwt.PyJWTError, NotImplementedError, TypeError, ValueError):
            continue  # the key is of an unknown kind, or damaged
        keys.setdefault(row.get("kid") if isinstance(row.get("kid"), str) else None, []).append(key.key)
    if not keys:
        raise ValueError("it has no key for signatures")
    return keys


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a redirect: a key must come from the configured URL."""
        return None


async def _fetch_in_thread(url: str) -> bytes:
    return await trio.to_thread.run_sync(_fetch, url, abandon_on_cancel=True)


def _fetch(url: str) -> bytes:
    """Return the content of an https URL. Raise OSError, ValueError."""
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=FETCH_S) as answer:
        content: bytes = answer.read(KEYS_BYTES + 1)
    if len(content) > KEYS_BYTES:
        raise ValueError(f"the answer has more than {KEYS_BYTES} bytes")
    return content
