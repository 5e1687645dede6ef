"""For receivers of pushed messages: create secrets, and verify the signatures of requests."""

from __future__ import annotations

import secrets as secrets_module
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sandq.model.times import Duration, duration_ms
from sandq.model.webhooks import SECRET_BYTES, secret_text, sign, verify

TOLERANCE: Final = "5m"


def new_push_secret() -> str:
    """Return a new secret for `client.admin.set_push`: `whsec_` and base64 of 24 random bytes."""
    return secret_text(secrets_module.token_bytes(SECRET_BYTES))


def verify_push(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance: Duration = TOLERANCE,
    now: float | None = None,
) -> None:
    """Raise InvalidRequest with the reason, unless a request was signed with one of the secrets within `tolerance`.

    `body`: the unmodified bytes of the request's body. `now`: seconds since 1970; None for the machine's clock.
    """
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    verify(known, headers, body, time.time() if now is None else now, duration_ms(tolerance) / 1000)


def sign_push(
    message_id: str, body: bytes, secrets: str | Sequence[str], *, now: float | None = None
) -> dict[str, str]:
    """Return the headers that sign a request, for tests of a receiver."""
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    now_s = int(time.time() if now is None else now)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": sign(known, message_id, now_s, body),
    }
