"""One side of a TLS connection, without I/O: it converts between encrypted bytes and plain bytes."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Final

from cryptography import x509

from sandq.model.errors import ProtocolError
from sandq.tls.names import read

READ_BYTES: Final = 65_536
"""Buffer size of a read from `ssl`. A record has at most 16 KiB."""
HEAD_BYTES: Final = 5
"""Size of a record's header. Its last two bytes are the length of the record."""
RECORD_BYTES: Final = (1 << 14) + 256
"""Maximum size of a record without its header."""
RECORDS_AT_ONCE: Final = 128
"""Maximum number of records decoded in one time slice, at about 2 us each."""
EMPTY_RECORD_BYTES: Final = 1 << 20
"""Bytes that must be received for each record without data.

Such records are key updates, which cost 100 us and a reply, and requests to renegotiate. An attacker could otherwise
send them without end."""
EMPTY_RECORDS_FIRST: Final = 8
"""Number of records without data that a peer may send before its first data. Later data allows more of them."""
ENCODED_BYTES: Final = 65_536
"""Maximum bytes that are encoded at once, because `ssl` keeps the memory for them until the connection ends."""
WRITE_BYTES: Final = 16_384
"""Maximum data bytes of one record. Join smaller pieces before writing them, because each write becomes a record."""

Buffer = bytes | bytearray | memoryview


class TlsError(ProtocolError):
    """The peer does not use TLS in a supported form, or its certificate is rejected."""


class TlsSession:
    """Does the handshake. Afterwards, it is a `Transform` of the connection's bytes (`sandq/server/wire.py`)."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        """`host`: for a client, the name that the server's certificate must have, if the context checks it."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, host)
        self._is_server = is_server
        self.is_open = False
        """True once the handshake is complete."""
        self.has_ended = False
        """True once the peer has announced the end of its data."""
        self.greeting_s = 0.0
        """CPU time of the last step of the handshake in s, even if it failed."""
        self.records = 0
        """Number of records decoded so far."""
        self.is_behind = False
        """True if some complete records are received, but not decoded yet. Call `decode(b"")` to decode them."""
        self._kept = b""
        """Received bytes after the last decoded record."""
        self._credit_bytes = EMPTY_RECORDS_FIRST * EMPTY_RECORD_BYTES
        """Credit for records without data: each one costs `EMPTY_RECORD_BYTES`, and each received byte adds one."""

    @property
    def certificate(self) -> x509.Certificate | None:
        """The certificate of the peer. None if the peer sent none."""
        return read(self._tls.getpeercert(True) or b"")

    @property
    def version(self) -> str:
        """Version of TLS in use. Empty before the handshake."""
        return self._tls.version() or ""

    # -- the handshake ------------------------------------------------------------------------------------------------

    def greet(self, record: bytes = b"") -> float:
        """Continue the handshake with a record from the peer. Return the CPU time of this step, in s.

        Send the bytes from `words` afterwards, even after an error. Raise TlsError if the handshake fails."""
        began_s = time.thread_time()
        if record:
            self._incoming.write(record)
        try:
            self._tls.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsError(self._why(error)) from None
        finally:
            self.greeting_s = time.thread_time() - began_s
        return self.greeting_s

    def words(self) -> bytes:
        """Return the pending bytes of TLS itself, which must be sent."""
        return self._outgoing.read()

    def _why(self, error: ssl.SSLError) -> str:
        return why_not(error, "the client" if self._is_server else "the server")

    # -- data ---------------------------------------------------------------------------------------------------------

    def decode(self, data: bytes) -> bytes:
        """Return the plain bytes of the records that `data` completes; often none. Raise TlsError if a record is
        invalid.

        Decodes the records one by one, to detect records without data. Stops after `RECORDS_AT_ONCE` records (see
        `is_behind`).
        """
        plain: list[bytes] = []
        data, at = self._completed(data, plain) if self._kept else (data, 0)
        view, size, most = memoryview(data), len(data), self.records + RECORDS_AT_ONCE
        while not self.has_ended and size - at >= HEAD_BYTES:
            end = at + _size_of(data, at)
            if end > size:
                break
            if self.records >= most:
                self._kept, self.is_behind = data[at:], True
                return b"".join(plain)
            self._decode_record(view[at:end], plain)
            at = end
        self._kept, self.is_behind = data[at:], False
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def _completed(self, data: bytes, plain: list[bytes]) -> tuple[bytes, int]:
        """Return (bytes to decode next, offset where to begin).

        If a part of a record was kept, complete only this record, because joining all of `data` to it would copy
        everything."""
        kept = self._kept
        if self.is_behind or len(kept) < HEAD_BYTES:
            return kept + data, 0
        missing = _size_of(kept, 0) - len(kept)
        if len(data) < missing:
            return kept + data, 0
        self._decode_record(kept + data[:missing], plain)
        return data, missing

    def _decode_record(self, record: Buffer, plain: list[bytes]) -> None:
        self.records += 1
        self._incoming.write(record)
        try:
            piece = self._tls.read(READ_BYTES)
            if piece:
                plain.append(piece)
            else:
                self.has_ended = True
        except ssl.SSLWantReadError:
            self._credit_bytes -= EMPTY_RECORD_BYTES
            if self._credit_bytes < 0:
                raise TlsError("records come that carry nothing, one after the other") from None
        except ssl.SSLZeroReturnError:
            self.has_ended = True  # both sides have announced the end
        except ssl.SSLError as error:
            raise TlsError(self._why(error)) from None
        self._credit_bytes = min(self._credit_bytes + len(record), EMPTY_RECORDS_FIRST * EMPTY_RECORD_BYTES)

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        """Return the bytes to send for these plain bytes, together with the pending bytes of TLS itself.

        Never raises an error: `decode` reports errors of the peer."""
        if not plain:
            return self._outgoing.read()
        joined = plain[0] if len(plain) == 1 else b"".join(plain)
        try:
            if len(joined) <= ENCODED_BYTES:
                if joined:
                    self._tls.write(joined)
                return self._outgoing.read()
            view, encoded = memoryview(joined), []
            for start in range(0, len(view), ENCODED_BYTES):
                self._tls.write(view[start : start + ENCODED_BYTES])
                encoded.append(self._outgoing.read())
        except ssl.SSLError:
            self.has_ended = True
            return b""
        return b"".join(encoded)

    def end(self) -> None:
        """Close the TLS session. Afterwards, send the pending records from `words`, and nothing else."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            return  # the peer need not have announced its end


def _size_of(data: bytes, at: int) -> int:
    """Return the size of the record at `at`, from its header.

    The result is limited to the maximum size, so that an oversized record is not buffered: `ssl` rejects it by its
    header."""
    return HEAD_BYTES + min(data[at + 3] << 8 | data[at + 4], RECORD_BYTES)


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "{other} shows no certificate, and one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "{other} requires a certificate: give one",
    "SSLV3_ALERT_BAD_CERTIFICATE": "{other} refuses the certificate of this side",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "{other} refuses the certificate of this side: it has ended",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "{other} refuses the certificate of this side",
    "TLSV1_ALERT_UNKNOWN_CA": "{other} refuses the certificate of this side: it does not know who issued that",
    "WRONG_VERSION_NUMBER": "{other} does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "{other} speaks a version of TLS before 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "{other} speaks a version of TLS before 1.2",
}


def why_not(error: ssl.SSLError, other: str) -> str:
    """Return a readable reason for an error. `other`: what to call the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {other} is refused: {error.verify_message or error.reason}"
    known = _REASONS.get(error.reason or "")
    if known is not None:
        return known.format(other=other)
    return f"{other} does not speak TLS as it is spoken here: {(error.reason or str(error)).replace('_', ' ').lower()}"
