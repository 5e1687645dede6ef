"""The keys of an encrypted cluster: AES-GCM with the first key for sending, and with any key for receiving.

    sealed = version u8 (1) | nonce, 12 bytes | ciphertext | tag, 16 bytes

Several keys let a cluster change its key without downtime: add the new key after the old one on every node, then move
it to the first position on every node, then remove the old one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sandq.gossip.steps import Steps
from sandq.model.errors import ConfigError, InvalidSetting, ProtocolError

VERSION: Final = 1
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD: Final = 1 + NONCE_BYTES + TAG_BYTES
"""Number of bytes that sealing adds."""
KEY_BYTES: Final = (16, 24, 32)
KEYS_MOST: Final = 16
"""Maximum number of keys: each of them is tried on packets that no key fits."""
DERIVED_KEY_BYTES: Final = 32
INFO: Final = b"sandq gossip 1"
STEP_BYTES: Final = 256 << 10
"""Number of bytes that are encrypted, or decrypted with one key, in one step."""
STEP_WORK: Final = 64
"""Units of work of one step."""

_VERSION = bytes((VERSION,))


class Keyring:
    """The first key seals, every key opens. Raises InvalidSetting for keys that are not 16, 24 or 32 bytes long."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not 1 <= len(keys) <= KEYS_MOST:
            raise InvalidSetting(f"{len(keys)} gossip keys: 1 to {KEYS_MOST} are expected")
        for position, key in enumerate(keys, 1):
            if len(key) not in KEY_BYTES:
                raise InvalidSetting(f"gossip key {position} has {len(key)} bytes: 16, 24 or 32 are expected")
            if key in keys[: position - 1]:
                raise InvalidSetting(f"gossip key {position} is key {keys.index(key) + 1} again: remove one of them")
        self._keys = list(keys)
        self._ciphers = [AESGCM(key) for key in keys]

    @classmethod
    def from_secrets(cls, secrets: Sequence[bytes]) -> Self:
        """Derive a key from each of the secrets that all nodes of the cluster share."""
        return cls([HKDF(SHA256(), DERIVED_KEY_BYTES, salt=None, info=INFO).derive(secret) for secret in secrets])

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read the text of the file `name`: one base64 key per line, the first one seals; `#` begins a comment.

        Raises ConfigError.
        """
        keys: dict[bytes, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            encoded = line.partition("#")[0].strip()
            if encoded:
                key = _key(encoded, f"{name}:{number}")
                if key in keys:
                    raise ConfigError(f"{name}:{number}: the key of line {keys[key]} again: remove one of them")
                keys[key] = number
        try:
            return cls(list(keys))
        except InvalidSetting as error:
            raise ConfigError(f"{name}: {error}") from None

    def seal(self, plain: bytes, aad: bytes, nonce: bytes) -> bytes:
        """Encrypt. `aad` is authenticated, but not part of the result. No nonce may be used twice."""
        return _VERSION + nonce + self._ciphers[0].encrypt(nonce, plain, aad)

    def sealing(self, plain: bytes, aad: bytes, nonce: bytes) -> Steps[bytes]:
        """Like `seal`, in steps."""
        encryptor = Cipher(AES(self._keys[0]), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(aad)
        parts = [_VERSION, nonce]
        view = memoryview(plain)
        for start in range(0, len(view), STEP_BYTES):
            if start:
                yield STEP_WORK
            parts.append(encryptor.update(view[start : start + STEP_BYTES]))
        parts.append(encryptor.finalize())
        return b"".join((*parts, encryptor.tag))

    def open(self, data: bytes, aad: bytes) -> bytes:
        """Decrypt. Raises ProtocolError."""
        _check(data)
        nonce, sealed = data[1 : 1 + NONCE_BYTES], data[1 + NONCE_BYTES :]
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, sealed, aad)
            except InvalidTag:
                continue
        raise _no_key_fits(data)

    def opening(self, data: bytes | bytearray, aad: bytes) -> Steps[bytes | bytearray]:
        """Like `open`, in steps: an attacker may send megabytes that no key fits."""
        _check(data)
        nonce, tag = bytes(data[1 : 1 + NONCE_BYTES]), bytes(data[-TAG_BYTES:])
        sealed = memoryview(data)[1 + NONCE_BYTES : -TAG_BYTES]
        for key in self._keys:
            decryptor = Cipher(AES(key), GCM(nonce, tag)).decryptor()
            decryptor.authenticate_additional_data(aad)
            plain = bytearray()
            for start in range(0, len(sealed), STEP_BYTES):
                if start:
                    yield STEP_WORK
                plain += decryptor.update(sealed[start : start + STEP_BYTES])
            try:
                decryptor.finalize()
            except InvalidTag:
                continue
            return plain
        raise _no_key_fits(data)


def _check(data: bytes | bytearray) -> None:
    if len(data) < OVERHEAD or data[0] != VERSION:
        raise ProtocolError(f"{len(data)} bytes that are not encrypted, and this cluster has a key")


def _no_key_fits(data: bytes | bytearray) -> ProtocolError:
    return ProtocolError(f"no key fits: {len(data)} bytes of another cluster, or not of this key file")


def _key(encoded: str, where: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{where}: not base64; create a key with `openssl rand -base64 32`") from None
    if len(key) not in KEY_BYTES:
        raise ConfigError(f"{where}: a key of {len(key)} bytes: 16, 24 or 32 are expected")
    return key
