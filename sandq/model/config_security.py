"""The sections `security`, `jwt` and `audit` of the configuration: authentication, tokens of an issuer, the audit log.

security {authentication, insecure, certificate_identities}
jwt      {issuer, audience, keys_file, jwks_url, algorithms, leeway, grants_claim}
audit    {enabled, file_bytes, files}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from sandq.model import schema
from sandq.model.config_types import split, text

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30

AUTHENTICATION: Final = ("off", "accept", "require")
"""Modes of `security.authentication`. HELLO's limit `authentication` is the index of the mode in this tuple."""
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Algorithms that may be pinned. All are asymmetric: a key that verifies tokens cannot make them."""


def _mode(value: object) -> object:
    """Convert booleans to modes: YAML reads a bare `off` as false."""
    return "off" if value is False else "require" if value is True else value


def _url(value: object) -> str:
    """Return an https URL. Raise a mistake if it may contain a password."""
    url = text(value)
    if not url.startswith("https://") or any(char.isspace() for char in url):
        raise schema.mistake(f"{url!r:.60} is no https:// URL")
    if "@" in url.removeprefix("https://").partition("/")[0]:
        raise schema.mistake("a URL with a name and a password in it is not asked: say none")
    return url


def _algorithm(value: object) -> str:
    """Return the name of an algorithm that signs tokens."""
    if value not in ALGORITHMS:
        raise schema.mistake(f"{value!r:.40} is none of {', '.join(ALGORITHMS)}")
    return str(value)


class SecuritySection(schema.Section):
    """Authentication of clients, and whether the node may run without authentication."""

    authentication: Annotated[Literal["off", "accept", "require"], BeforeValidator(_mode)] = "off"
    """accept: clients with credentials are limited to their rights; clients without credentials may do everything."""
    insecure: bool = False
    """True if other machines may reach the node without TLS and authentication."""
    certificate_identities: bool = True
    """Whether a client's certificate (`tls.client_certificates`) identifies it."""


class JwtSection(schema.Section):
    """Tokens (JWT) of an external issuer."""

    issuer: Annotated[str | None, BeforeValidator(text)] = None
    """Issuer whose tokens are accepted; None: no such tokens are accepted."""
    audience: Annotated[str, BeforeValidator(text)] = "sandq"
    keys_file: Annotated[Path | None, BeforeValidator(text)] = None
    """File with a public key in PEM, or with a set of keys (JWKS)."""
    jwks_url: Annotated[str | None, BeforeValidator(_url)] = None
    algorithms: Annotated[list[Annotated[str, BeforeValidator(_algorithm)]], BeforeValidator(split)] = Field(
        default=["RS256", "ES256", "EdDSA"]
    )
    leeway_ms: Annotated[int, schema.duration(0, 300_000)] = Field(default=30_000, alias="leeway")
    """Tolerance for clocks that differ, in ms."""
    # This field is last, so that its validator sees the other fields.
    grants_claim: Annotated[str, BeforeValidator(text)] = Field(default="sandq_grants", validate_default=True)
    """Name of the claim that holds a list of grants."""

    @field_validator("grants_claim")
    @classmethod
    def _keys_of_an_issuer(cls, claim: str, info: ValidationInfo) -> str:
        """Check that an issuer has exactly one source of keys, and that keys have an issuer."""
        known = info.data
        keys = [name for name in ("keys_file", "jwks_url") if known.get(name) is not None]
        if known.get("issuer") is not None and len(keys) != 1:
            raise schema.mistake("an issuer needs its keys: say either keys_file or jwks_url")
        if known.get("issuer") is None and keys:
            raise schema.mistake(f"{keys[0]} without issuer: say whose tokens these keys sign")
        return claim


class AuditSection(schema.Section):
    """The audit log, which records the actions of each caller."""

    enabled: bool = True
    file_bytes: Annotated[int, schema.size(64 * _KIB, _GIB)] = 16 * _MIB
    files: Annotated[int, schema.integer(1, 1000)] = 8
    """Number of files that are kept; the oldest file is deleted first."""
