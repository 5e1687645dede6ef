"""Names of callers, and the text of tokens.

A *principal* is a kind and a name: `token:NAME`, `jwt:SUBJECT`, `cert:NAME`. `anonymous` is a caller without
credentials, and `node` is a node, or a gateway of the cluster. PERSISTED: identities are stored by principal, tokens by
the SHA-256 of their text.
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
"""Kinds of principals that may have an identity."""
TOKEN_PREFIX: Final = "sandq_"
TOKEN_BYTES: Final = 32
"""Number of random bytes in a token."""
HASH_BYTES: Final = 32
TOKEN_CHARS: Final = 6144
"""Maximum number of characters of a credential; most tokens of an external issuer have a few hundred."""


def principal_of(kind: str, name: str) -> str:
    """Return the principal of this kind and name."""
    return f"{kind}:{name}"


def kind_of(principal: str) -> str:
    """Return the kind of a principal."""
    return principal.partition(":")[0]


def check_principal(principal: object) -> str:
    """Return a principal that may have an identity. Raise InvalidRequest or InvalidName otherwise."""
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
    """Return the text of a token. `random`: `TOKEN_BYTES` unpredictable bytes."""
    if len(random) != TOKEN_BYTES:
        raise ValueError(f"a token is made of {TOKEN_BYTES} random bytes")
    return TOKEN_PREFIX + urlsafe_b64encode(random).decode().rstrip("=")


def token_hash(text: str) -> bytes:
    """Return the hash that is stored for a token. The token cannot be guessed from it, because it is random."""
    return hashlib.sha256(text.encode()).digest()
