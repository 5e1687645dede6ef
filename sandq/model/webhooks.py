"""Signatures of requests that carry a message, as specified by Standard Webhooks.

The signed text is `id "." timestamp "." body`, signed by HMAC-SHA256 with each secret. The header lists the signatures:
`v1,<base64> v1,<base64>`. For a while both an old and a new secret sign, so that a secret can be replaced without
failing requests. A secret is text, `whsec_` and base64 of 24 to 64 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from sandq.model.errors import InvalidRequest

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 24
"""Random bytes of a new secret, and the minimum for any secret."""
SECRET_BYTES_MOST: Final = 64
TOLERANCE_S: Final = 300
"""Maximum difference between the time of a request and the receiver's clock, in seconds."""
_VERSION: Final = "v1"
_SIGNATURES_MOST: Final = 20
_TEXT_MOST: Final = 4096


def secret_key(secret: str) -> bytes:
    """Return the key of a secret. Raise InvalidRequest, which never repeats the given text."""
    key = b""
    if isinstance(secret, str) and secret.startswith(SECRET_PREFIX):
        with suppress(ValueError, binascii.Error):
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX).encode("ascii"), validate=True)
    if not SECRET_BYTES <= len(key) <= SECRET_BYTES_MOST:
        raise InvalidRequest(
            f"a secret is {SECRET_PREFIX} and base64 of {SECRET_BYTES} to {SECRET_BYTES_MOST} random bytes; "
            "what was given is not (it is not repeated here)"
        )
    return key


def secret_text(key: bytes) -> str:
    """Return the text of a secret with these bytes."""
    return SECRET_PREFIX + base64.b64encode(key).decode("ascii")


def secret_hint(secret: str) -> str:
    """Return the part of a secret that may be shown: enough to distinguish two secrets, too little to sign with."""
    return f"{SECRET_PREFIX}…{secret[-4:]}"


def sign(secrets: Iterable[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the signature header of a request."""
    return " ".join([f"{_VERSION},{_signature(secret, message_id, str(timestamp_s), body)}" for secret in secrets])


def _signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request with one secret, in base64."""
    signed = b".".join((_encoded(message_id), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(secret_key(secret), signed, "sha256")).decode("ascii")


def _encoded(text: str) -> bytes:
    """Encode text. Servers represent bytes that are no text as lone surrogates."""
    return text.encode(errors="surrogatepass")


def verify(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S
) -> None:
    """Raise InvalidRequest with the reason unless a request was recently signed with one of the secrets. Names in
    `headers` may be in upper or lower case."""
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp = found[ID_HEADER], found[TIMESTAMP_HEADER]
        signatures = found[SIGNATURE_HEADER]
    except KeyError as missing:
        raise InvalidRequest(f"the request has no header {missing.args[0]}") from None
    if len(signatures) > _TEXT_MOST or len(message_id) > _TEXT_MOST:
        raise InvalidRequest("the headers of the signature are too long")
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16):
        raise InvalidRequest(f"{TIMESTAMP_HEADER}: whole seconds since 1970 are expected, not {timestamp[:40]!r}")
    age_s = now_s - int(timestamp)
    if abs(age_s) > tolerance_s:
        when = "ago" if age_s > 0 else "ahead"
        raise InvalidRequest(f"the request was signed {abs(age_s):.0f} s {when}, and {tolerance_s:g} s are allowed")
    given = [text.partition(",") for text in signatures.split(" ")[:_SIGNATURES_MOST]]
    # Compare every signature with every secret, without stopping at a match, so that the time taken reveals nothing.
    matches = [
        hmac.compare_digest(_encoded(signature), _signature(secret, message_id, timestamp, body).encode())
        for version, _, signature in given
        if version == _VERSION
        for secret in secrets
    ]
    if not any(matches):
        raise InvalidRequest("no signature of the request was made with a secret that is known here")
