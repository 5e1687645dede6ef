"""Names of those who ask, and the text of tokens. Pure.

A *principal* is a kind and a name: `token:NAME`, `jwt:SUBJECT`, `cert:NAME`; `anonymous` shows nothing that says who it
is, and `node` is a node, or a gateway of the cluster. PERSISTED: identities are kept by principal, tokens by the
SHA-256 of their text.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Final

from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import check_name

TOKEN: Final = "token"
JWT: Final = "jwt"
CERTIFICATE: Final = "cert"
KINDS: Final = (TOKEN, JWT, CERTIFICATE)
"""Of principals that there are identities of."""
TOKEN_PREFIX: Final = "sandq_"
TOKEN_BYTES: Final = 32
"""Random, of a token."""
HASH_BYTES: Final = 32
TOKEN_CHARS: Final = 6144
"""Of what somebody shows to say who it is: a token of an outside issuer has a few hundred, most often."""


def principal_of(kind: str, name: str) -> str:
    """Return the principal of this kind and name."""
    return f"{kind}:{name}"


def kind_of(principal: str) -> str:
    """Return what kind of principal it is."""
    return principal.partition(":")[0]


def check_principal(principal: object) -> str:
    """Return a principal that there may be an identity of. Raises InvalidRequest, InvalidName."""
    expected = f"a principal is {', '.join(f'{kind}:NAME' for kind in KINDS[:-1])} or {KINDS[-1]}:NAME"
    if not isinstance(principal, str):
        raise InvalidRequest(f"{expected}, not {repr(principal)[:40]}")
    kind, _, name = principal.partition(":")
    if kind not in KINDS or not name:
        raise InvalidRequest(f"{expected}, not {principal[:80]!r}")
    if len(principal) > FIXED.principal_chars or not name.isprintable():
        raise InvalidRequest(
            f"principal {principal[:80]!r}: it has {FIXED.principal_chars} characters at most, and none that cannot be "
            "seen"
        )
    if kind == TOKEN:
        check_name("token", name)
    return principal


def token_text(random: bytes) -> str:
    """Return the text of a token. `random`: `TOKEN_BYTES` that nobody can guess."""
    if len(random) != TOKEN_BYTES:
        raise ValueError(f"a token is made of {TOKEN_BYTES} random bytes")
    return TOKEN_PREFIX + urlsafe_b64encode(random).decode().rstrip("=")


def token_hash(text: str) -> bytes:
    """Return what is kept of a token: nobody finds the token by it, for it is random."""
    return hashlib.sha256(text.encode()).digest()
