"""Tests of signatures: the published example of Standard Webhooks, several secrets, and wrong signatures."""

from __future__ import annotations

import base64

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.webhooks import SECRET_BYTES, secret_hint, secret_key, secret_text, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = secret_text(bytes(range(32)))
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'


def headers(*secrets: str) -> dict[str, str]:
    return {"Webhook-Id": ID, "Webhook-Timestamp": str(AT), "Webhook-Signature": sign(secrets, ID, AT, BODY)}


def test_published_example_has_its_signature() -> None:
    assert sign([SECRET], ID, AT, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_of_several_secrets_signs() -> None:
    signed = headers(OTHER, SECRET)
    assert len(signed["Webhook-Signature"].split(" ")) == 2
    for known in ([SECRET], [OTHER], [SECRET, OTHER]):
        verify(known, signed, BODY, AT)


@pytest.mark.parametrize(
    ("changes", "body", "now_s", "why"),
    [
        ({}, BODY + b" ", AT, "no signature"),
        ({"Webhook-Id": "msg_other"}, BODY, AT, "no signature"),
        ({"Webhook-Timestamp": str(AT + 1)}, BODY, AT, "no signature"),
        ({"Webhook-Signature": "v1,"}, BODY, AT, "no signature"),
        ({"Webhook-Signature": "v1,ä"}, BODY, AT, "no signature"),
        ({"Webhook-Signature": "v1,\udce4"}, BODY, AT, "no signature"),
        ({"Webhook-Id": "\udce4"}, BODY, AT, "no signature"),
        ({"Webhook-Signature": sign([SECRET], ID, AT, BODY).replace("v1,", "v2,")}, BODY, AT, "no signature"),
        ({"Webhook-Signature": "x" * 5000}, BODY, AT, "too long"),
        ({"Webhook-Timestamp": "soon"}, BODY, AT, "whole seconds"),
        ({"Webhook-Timestamp": "9" * 400}, BODY, AT, "whole seconds"),
        ({}, BODY, AT + 301, "301 s ago"),
        ({}, BODY, AT - 301, "301 s ahead"),
    ],
)
def test_modified_or_old_data_is_refused(changes: dict[str, str], body: bytes, now_s: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        verify([SECRET], headers(SECRET) | changes, body, now_s)


def test_signature_with_another_secret_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no signature"):
        verify([OTHER], headers(SECRET), BODY, AT)


@pytest.mark.parametrize("missing", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_a_missing_header_is_named(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing.lower()):
        verify([SECRET], {name: value for name, value in headers(SECRET).items() if name != missing}, BODY, AT)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "hunter2hunter2",
        "whsec_",
        "whsec_äöü",
        "whsec_not base64!",
        secret_text(bytes(SECRET_BYTES - 1)),
        secret_text(bytes(65)),
        base64.b64encode(bytes(32)).decode(),
        7,
        b"whsec_",
        None,
    ],
)
def test_invalid_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidRequest, match="a secret is whsec_") as refusal:
        secret_key(secret)
    assert not secret or len(str(secret)) < 8 or str(secret) not in str(refusal.value)


def test_secret_hint_reveals_few_characters() -> None:
    assert secret_hint(SECRET) == "whsec_…LaSw"
