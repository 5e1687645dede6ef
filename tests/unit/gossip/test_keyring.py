"""Tests of keys: sealing, opening and key files."""

from __future__ import annotations

import hmac
from base64 import b64encode

import pytest

from sandq.gossip.keyring import NONCE_BYTES, OVERHEAD, STEP_BYTES, STEP_WORK, VERSION, Keyring
from sandq.gossip.steps import at_once
from sandq.model.errors import ConfigError, InvalidSetting, ProtocolError

OLD, NEW = bytes(16), bytes(range(32))
NONCE = b"0123456789ab"


def line(key: bytes) -> str:
    return b64encode(key).decode()


def test_sealed_bytes_can_be_opened() -> None:
    for key in (bytes(16), bytes(24), bytes(32)):
        ring = Keyring([key])
        sealed = ring.seal(b"plain", b"more", NONCE)
        assert len(sealed) == len(b"plain") + OVERHEAD == 34
        assert sealed[0] == 1 and sealed[1 : 1 + NONCE_BYTES] == NONCE and b"plain" not in sealed
        assert ring.open(sealed, b"more") == b"plain"


def test_aes_gcm_matches_the_published_example() -> None:
    """Test case 14 of the GCM specification: a zero key, nonce and block."""
    sealed = Keyring([bytes(32)]).seal(bytes(16), b"", bytes(12))
    assert sealed[13:].hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


def test_any_key_opens_and_the_first_one_seals() -> None:
    before, between, after = Keyring([OLD]), Keyring([NEW, OLD]), Keyring([NEW])
    assert between.open(before.seal(b"x", b"", NONCE), b"") == b"x"
    assert after.open(between.seal(b"x", b"", NONCE), b"") == b"x"
    with pytest.raises(ProtocolError, match="no key fits"):
        after.open(before.seal(b"x", b"", NONCE), b"")


def test_modified_data_is_refused() -> None:
    ring = Keyring([NEW])
    sealed = ring.seal(b"plain", b"more", NONCE)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(ProtocolError):
            ring.open(bytes(changed), b"more")
    for size in range(len(sealed)):
        with pytest.raises(ProtocolError):
            ring.open(sealed[:size], b"more")
    with pytest.raises(ProtocolError):
        ring.open(sealed, b"less")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([], "0 gossip keys: 1 to 16"),
        ([bytes([number]) * 16 for number in range(17)], "17 gossip keys"),
        ([NEW, b"short"], "gossip key 2 has 5 bytes: 16, 24 or 32"),
        ([NEW, OLD, NEW], "gossip key 3 is key 1 again"),
    ],
)
def test_keys_that_are_none(keys: list[bytes], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        Keyring(keys)


def test_a_key_comes_from_the_secret_by_hkdf() -> None:
    secret = b"the secret of the cluster"
    extracted = hmac.digest(bytes(32), secret, "sha256")
    key = hmac.digest(extracted, b"sandq gossip 1\x01", "sha256")
    assert Keyring([key]).open(Keyring.from_secrets([secret]).seal(b"x", b"", NONCE), b"") == b"x"


def test_a_file_of_keys() -> None:
    text = f"# keys of the cluster\n\n {line(NEW)}  # since may\r\n{line(OLD)}\n"
    ring = Keyring.parse(text, "gossip.keys")
    assert Keyring([NEW]).open(ring.seal(b"x", b"", NONCE), b"") == b"x"
    assert ring.open(Keyring([OLD]).seal(b"x", b"", NONCE), b"") == b"x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"gossip.keys: 0 gossip keys"),
        ("# nothing\n", r"gossip.keys: 0 gossip keys"),
        (f"{line(NEW)}\nsecret!\n", r"gossip.keys:2: not base64; .*openssl"),
        (f"{line(NEW)}\nsécret\n", r"gossip.keys:2: not base64"),
        (f"\n{line(b'short')}\n", r"gossip.keys:2: a key of 5 bytes: 16, 24 or 32"),
        (f"{line(NEW)}\n#\n{line(NEW)}\n", r"gossip.keys:3: the key of line 1 again"),
    ],
)
def test_a_file_that_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Keyring.parse(text, "gossip.keys")
    assert line(NEW) not in str(caught.value) and "cret" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, 3 * STEP_BYTES + 1])
def test_large_data_is_sealed_in_steps(size: int) -> None:
    ring, plain = Keyring([bytes(32)]), bytes(size)
    assert at_once(ring.sealing(plain, b"head", NONCE)) == ring.seal(plain, b"head", NONCE)
    assert [*ring.sealing(plain, b"head", NONCE)] == [STEP_WORK] * (max(0, size - 1) // STEP_BYTES)


def test_large_data_is_opened_in_steps_with_each_key() -> None:
    keys = [bytes([number] * 32) for number in range(3)]
    plain = bytes(5 * STEP_BYTES)
    sealed = Keyring([keys[2]]).seal(plain, b"head", bytes(12))
    opening = Keyring(keys).opening(sealed, b"head")
    works = []
    with pytest.raises(StopIteration) as end:
        while True:
            works.append(next(opening))
    assert end.value.value == plain and works == [STEP_WORK] * (3 * 4)
    for data, aad in ((sealed, b"other"), (bytes((VERSION,)) + sealed[1:-1] + b"x", b"head"), (b"", b"head")):
        with pytest.raises(ProtocolError):
            at_once(Keyring(keys).opening(data, aad))
