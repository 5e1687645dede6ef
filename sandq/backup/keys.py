"""The key of encrypted backups, and the ciphers of their files.

A key is 32 bytes, in a file as base64 or hex (`openssl rand -base64 32`). Each file has its own key: HKDF-SHA256 of the
key and the file's salt. A block's nonce is its number in the file. So no nonce is used twice with one key, and a block
cannot be moved to another file or position.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandq.backup.errors import WrongKey
from sandq.model.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
SALT_BYTES: Final = 16
_MOST_BYTES: Final = 4096
_OTHERS: Final = 0o077
_INFO: Final = b"sandq backup file 1"


class BackupKey:
    """The key that encrypts and decrypts backups. Without it, they cannot be read."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidRequest(f"a key of backups has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self.key_id = hmac.digest(key, b"sandq backup key id", hashlib.sha256)[:KEY_ID_BYTES].hex()
        """Identifies the key that a backup needs, without revealing it."""

    @classmethod
    def read(cls, path: str | Path) -> BackupKey:
        """Read the key from a file that only its owner may read. Raises ConfigError."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise ConfigError(f"the key of backups {path} cannot be read: {error.strerror or error}") from None
        if mode & _OTHERS:
            raise ConfigError(f"the key of backups {path} is open to others than its owner: chmod 600 {path}")
        found = _decoded(text)
        if found is None:
            raise ConfigError(
                f"{path} is no key of backups: {KEY_BYTES} bytes as base64 or hex are expected "
                "(openssl rand -base64 32 makes one)"
            )
        return cls(found)

    def __repr__(self) -> str:
        """Return a text that does not contain the key."""
        return f"BackupKey({self.key_id})"

    def cipher(self, salt: bytes) -> FileCipher:
        """Return the cipher for the blocks of one file."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError:
            raise ConfigError(
                "encrypted backups need the package cryptography: pip install 'sandq-client[backup]'"
            ) from None
        return FileCipher(AESGCM(HKDF(SHA256(), KEY_BYTES, salt=salt, info=_INFO).derive(self._key)))


class FileCipher:
    """The cipher of one file."""

    def __init__(self, aead: AESGCM) -> None:
        self._aead = aead

    def seal(self, number: int, plain: bytes, associated: bytes) -> bytes:
        """Encrypt a block; `associated` is authenticated with it."""
        return self._aead.encrypt(number.to_bytes(12, "big"), plain, associated)

    def open(self, number: int, sealed: bytes, associated: bytes) -> bytes | None:
        """Decrypt a block; return None if it or `associated` differs from the data sealed with this key."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(number.to_bytes(12, "big"), sealed, associated)
        except InvalidTag:
            return None


def check_key(key: BackupKey | None, key_id: str | None, file: str) -> None:
    """Raise WrongKey unless this is the key of a file; None for an unencrypted file.

    With a key, unencrypted files are rejected: an attacker with write access could have put them there.
    """
    if key_id is None and key is not None:
        raise WrongKey(
            f"{file} is not encrypted, and a key was given: leave the key out if that is intended", file=file
        )
    if key_id is not None and key is None:
        raise WrongKey(f"{file} is encrypted: give the file with its key ({key_id})", file=file)
    if key_id is not None and key is not None and key_id != key.key_id:
        raise WrongKey(f"{file} is encrypted with the key {key_id}, and {key.key_id} was given", file=file)


def _decoded(text: str) -> bytes | None:
    for decode in (base64.b64decode, bytes.fromhex):
        try:
            found = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(found) == KEY_BYTES:
            return found
    return None
