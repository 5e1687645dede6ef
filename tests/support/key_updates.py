"""Build TLS 1.3 records that request new keys repeatedly.

Python's `ssl` never sends such records, but any client may send them after the handshake."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_SECRET = "CLIENT_TRAFFIC_SECRET_0"
_UPDATE = b"\x18\0\0\1\1"
"""Handshake message KeyUpdate that requests new keys from the peer, too."""
_HANDSHAKE, _DATA, _VERSION = b"\x16", b"\x17", b"\x03\x03"
_TAG_BYTES = 16
_HASHES = {"TLS_AES_256_GCM_SHA384": (hashes.SHA384(), 32), "TLS_AES_128_GCM_SHA256": (hashes.SHA256(), 16)}


def log_keys(context: ssl.SSLContext, path: Path) -> None:
    """Write the keys of the handshake to a file. Call it before the handshake."""
    context.keylog_filename = str(path)


class KeyUpdates:
    """Builds the records of a client that has sent nothing since its handshake."""

    def __init__(self, keys: Path, cipher: str) -> None:
        (found,) = [line.split()[2] for line in keys.read_text().splitlines() if line.startswith(_SECRET)]
        self._secret = bytes.fromhex(found)
        self._hash, self._key_bytes = _HASHES[cipher]

    def next(self) -> bytes:
        """Return a record that requests new keys. This side uses new keys for its next record."""
        record = self._record(_UPDATE + _HANDSHAKE)
        self._secret = self._expand("traffic upd", len(self._secret))
        return record

    def data(self, text: bytes) -> bytes:
        """Return a record that carries data. Its record number is 0, so it must be the first one after a key change."""
        return self._record(text + _DATA)

    def _record(self, inner: bytes) -> bytes:
        # Each key is used once, for the record with the number 0, so the nonce equals the IV.
        head = _DATA + _VERSION + (len(inner) + _TAG_BYTES).to_bytes(2, "big")
        return head + AESGCM(self._expand("key", self._key_bytes)).encrypt(self._expand("iv", 12), inner, head)

    def _expand(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)
