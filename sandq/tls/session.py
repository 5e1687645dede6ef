"""One side of a TLS connection, without any I/O: bytes of the wire in and out, plain bytes in and out."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Final

from cryptography import x509

from sandq.model.errors import ProtocolError
from sandq.tls.names import read

READ_BYTES: Final = 65_536
"""Asked for at once; a record has 16 KiB at most."""
WRITE_BYTES: Final = 16_384
"""A record's: what is less is joined before it is written, for each write is a record."""

Buffer = bytes | bytearray | memoryview


class TlsError(ProtocolError):
    """The other side speaks no TLS as it is spoken here, or its certificate is refused."""


class TlsSession:
    """Made for a handshake; then a `Transform` of the connection's bytes (`sandq/server/wire.py`)."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        """`host`: whose certificate a client expects, where the context checks that."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, host)
        self._is_server = is_server
        self.is_open = False
        """Whether the handshake is done."""
        self.has_ended = False
        """Whether the other side has said that nothing more comes."""

    @property
    def certificate(self) -> x509.Certificate | None:
        """The one that the other side has shown, if it has."""
        return read(self._tls.getpeercert(True) or b"")

    @property
    def version(self) -> str:
        """Of TLS."""
        return self._tls.version() or ""

    # -- the handshake ------------------------------------------------------------------------------------------------

    def greet(self, record: bytes = b"") -> float:
        """Take a record of the other side, and go on as far as that goes; the CPU time that it took, in seconds. What
        is to be sent then, `words` gives, also after an error. Raises TlsError."""
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
        return time.thread_time() - began_s

    def words(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()

    def _why(self, error: ssl.SSLError) -> str:
        return why_not(error, "the client" if self._is_server else "the server")

    # -- what is said inside ------------------------------------------------------------------------------------------

    def decode(self, data: bytes) -> bytes:
        """The plain bytes that these complete; often none. Raises TlsError."""
        incoming, tls = self._incoming, self._tls
        if data:
            incoming.write(data)
        plain: list[bytes] = []
        try:
            while not self.has_ended:
                piece = tls.read(READ_BYTES)
                self.has_ended = not piece
                plain.append(piece)
                if not incoming.pending and not tls.pending():
                    break  # to be told so by an exception costs as much as all the rest
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True  # both sides have said so
        except ssl.SSLError as error:
            raise TlsError(self._why(error)) from None
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        """What is to be sent for these. Never raises: `decode` tells what is wrong with the other side."""
        try:
            if len(plain) == 1:
                if plain[0]:
                    self._tls.write(plain[0])
            elif plain:
                self._tls.write(b"".join(plain))
        except ssl.SSLError:
            self.has_ended = True
            return b""
        return self._outgoing.read()

    def end(self) -> None:
        """Nothing is sent any more, but for words that say so."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            return  # the other side has not said so, and need not


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
    """What went wrong, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {other} is refused: {error.verify_message or error.reason}"
    known = _REASONS.get(error.reason or "")
    if known is not None:
        return known.format(other=other)
    return f"{other} does not speak TLS as it is spoken here: {(error.reason or str(error)).replace('_', ' ').lower()}"
