"""Tests of tokens from an external issuer: signature, issuer, audience, times, and keys."""

from __future__ import annotations

import base64
import hmac
import json
from http.client import HTTPException
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from sandq.broker.access import jwt_tokens
from sandq.broker.access.jwt_tokens import JwtVerifier
from sandq.model.config_security import JwtSection
from sandq.model.errors import StartupError, Unauthenticated, Unavailable

NOW_S = 1_900_000_000
KEY = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
EC_KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "ada", "iss": "https://id.example", "aud": "sandq", "exp": NOW_S + 600, "sandq_grants": ["read:a.*"]}


def pem(key: Any) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    found: bytes = key.public_key().public_bytes(encoding, form)
    return found


def signed(key: Any = KEY, algorithm: str = "EdDSA", key_id: str | None = None, **claims: Any) -> str:
    said = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={} if key_id is None else {"kid": key_id})


class Clock:
    ms = NOW_S * 1000

    def __call__(self) -> int:
        return self.ms


def section(**more: Any) -> JwtSection:
    return JwtSection.model_validate({"issuer": "https://id.example", **more})


@pytest.fixture
def verifier(tmp_path: Path) -> JwtVerifier:
    (tmp_path / "keys.pem").write_bytes(pem(KEY) + pem(EC_KEY))
    return JwtVerifier(section(keys_file=str(tmp_path / "keys.pem")), Clock())


async def test_claims_of_a_token_name_subject_and_grants(verifier: JwtVerifier) -> None:
    claims = await verifier.claims(signed())
    assert claims == ("ada", ("read:a.*",), (NOW_S + 600) * 1000 + 30_000)
    assert (await verifier.claims(signed(EC_KEY, "ES256", sandq_grants=None))).grants == ()


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (signed(OTHER), "Signature"),
        (signed(iss="https://other.example"), "issuer"),
        (signed(aud="others"), "udience"),
        (signed(aud=None), "aud"),
        (signed(exp=NOW_S - 31), "expired"),
        (signed(exp=None), "exp"),
        (signed(exp="soon"), "times"),
        (signed(nbf=NOW_S + 60), "not valid yet"),
        (signed(sub=None), "sub"),
        (signed(sub=""), "subject"),
        (signed(sub="a\nb"), "subject"),
        (signed(sub="x" * 300), "characters"),
        (signed(sandq_grants="admin"), "list"),
        (signed(sandq_grants=["produce:"]), "pattern"),
        (signed(sandq_grants=["read"] * 101), "100"),
        (jwt.encode(CLAIMS, "x" * 32, "HS256"), "HS256"),
        (jwt.encode(CLAIMS, None, "none"), "none"),
        ("no.such.token", "refused"),
        ("nothing", "refused"),
    ],
)
async def test_invalid_input_is_refused(verifier: JwtVerifier, token: str, words: str) -> None:
    with pytest.raises(Unauthenticated, match=words):
        await verifier.claims(token)


async def test_a_public_key_is_no_secret_by_which_tokens_are_made(tmp_path: Path) -> None:
    """A known JWT attack: the public key of RS256 is used as the secret of HS256."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "keys.pem").write_bytes(pem(key))
    verifier = JwtVerifier(section(keys_file=str(tmp_path / "keys.pem")), Clock())
    head, body, _ = jwt.encode(CLAIMS, "x" * 40, "HS256").split(".")
    mac = hmac.digest(pem(key), f"{head}.{body}".encode(), "sha256")
    forged = f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    with pytest.raises(Unauthenticated, match="HS256"):
        await verifier.claims(forged)
    assert (await verifier.claims(signed(key, "RS256"))).subject == "ada"


async def test_a_token_that_was_checked_still_expires(tmp_path: Path) -> None:
    (tmp_path / "keys.pem").write_bytes(pem(KEY))
    clock = Clock()
    verifier = JwtVerifier(section(keys_file=str(tmp_path / "keys.pem")), clock)
    token = signed()
    await verifier.claims(token)
    clock.ms += 631_000
    with pytest.raises(Unauthenticated, match="expired"):
        await verifier.claims(token)


class Issuer:
    """Serves keys at a URL."""

    def __init__(self) -> None:
        self.asked = 0
        self.content = self.of("one", KEY)

    @staticmethod
    def of(key_id: str, key: Any) -> bytes:
        row = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key())) | {"kid": key_id, "use": "sig"}
        return json.dumps({"keys": [row]}).encode()

    async def __call__(self, url: str) -> bytes:
        self.asked += 1
        if not self.content:
            raise OSError("no route to host")
        return self.content


async def test_keys_of_a_url_are_kept_and_asked_for_again(autojump_clock: Any) -> None:
    issuer = Issuer()
    verifier = JwtVerifier(section(jwks_url="https://id.example/keys"), Clock(), issuer)
    for _ in range(3):
        await verifier.claims(signed(key_id="one"))
    assert issuer.asked == 1
    with pytest.raises(Unauthenticated):
        await verifier.claims(signed(OTHER, key_id="two"))
    assert issuer.asked == 1, "the key server was asked a moment ago"
    await trio.sleep(jwt_tokens.FETCH_LEAST_S)
    issuer.content = issuer.of("two", OTHER)
    assert (await verifier.claims(signed(OTHER, key_id="two"))).subject == "ada"
    with pytest.raises(Unauthenticated):
        await verifier.claims(signed(key_id="one"))


async def test_known_keys_stay_valid_while_the_issuer_is_unreachable(autojump_clock: Any) -> None:
    issuer = Issuer()
    verifier = JwtVerifier(section(jwks_url="https://id.example/keys"), Clock(), issuer)
    await verifier.claims(signed(key_id="one"))
    issuer.content = b""
    await trio.sleep(jwt_tokens.KEPT_S + 1)
    assert (await verifier.claims(signed(key_id="one", sub="eve"))).subject == "eve"
    await trio.sleep(jwt_tokens.STALE_S)
    with pytest.raises(Unavailable, match="jwks_url"):
        await verifier.claims(signed(key_id="one", sub="bob"))


async def test_a_token_that_was_checked_is_no_good_without_its_key(autojump_clock: Any) -> None:
    issuer = Issuer()
    verifier = JwtVerifier(section(jwks_url="https://id.example/keys"), Clock(), issuer)
    token = signed(key_id="one")
    await verifier.claims(token)
    issuer.content = issuer.of("two", OTHER)
    await trio.sleep(jwt_tokens.KEPT_S + 1)
    with pytest.raises(Unauthenticated):
        await verifier.claims(token)


async def test_token_is_refused_after_a_day_without_the_issuer(autojump_clock: Any) -> None:
    issuer = Issuer()
    verifier = JwtVerifier(section(jwks_url="https://id.example/keys"), Clock(), issuer)
    token = signed(key_id="one")
    await verifier.claims(token)
    issuer.content = b""
    await trio.sleep(jwt_tokens.STALE_S + 1)
    with pytest.raises(Unavailable, match="jwks_url"):
        await verifier.claims(token)


@pytest.mark.parametrize("error", [HTTPException("what is this"), TypeError("no"), KeyError("kty")])
async def test_an_issuer_that_talks_nonsense_is_none_that_answers(autojump_clock: Any, error: Exception) -> None:
    async def fetch(url: str) -> bytes:
        raise error

    verifier = JwtVerifier(section(jwks_url="https://id.example/keys?code=swordfish"), Clock(), fetch)
    with structlog.testing.capture_logs() as lines, pytest.raises(Unavailable, match="jwks_url"):
        await verifier.claims(signed(key_id="one"))
    assert [line["url"] for line in lines] == ["https://id.example/keys?code=…"]


async def test_a_damaged_key_does_not_keep_the_others_out(autojump_clock: Any) -> None:
    issuer = Issuer()
    (whole,) = json.loads(issuer.content)["keys"]
    damaged = {"kty": "RSA", "n": "AQAB", "e": "AQAB"}
    issuer.content = json.dumps({"keys": [damaged | {"alg": ["x"]}, damaged | {"alg": "none"}, whole]}).encode()
    verifier = JwtVerifier(section(jwks_url="https://id.example/keys"), Clock(), issuer)
    assert (await verifier.claims(signed(key_id="one"))).subject == "ada"


_CUT_OFF = b"-----BEGIN PUBLIC KEY-----\nx\n-----END"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"keys": 5}', b'{"keys": []}', b"[" * 100_000, _CUT_OFF, b"-----BEGIN PUBLIC KEY-----\nx"]
)
def test_a_file_without_keys_is_a_mistake(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(StartupError, match="keys_file"):
        JwtVerifier(section(keys_file=str(tmp_path / "keys")), Clock())


def test_a_private_key_is_not_taken(tmp_path: Path) -> None:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "keys").write_bytes(KEY.private_bytes(serialization.Encoding.PEM, *form))
    with pytest.raises(StartupError, match="private"):
        JwtVerifier(section(keys_file=str(tmp_path / "keys")), Clock())
