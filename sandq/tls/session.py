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
HEAD_BYTES: Final = 5
"""Of a record; the last two are its length."""
RECORD_BYTES: Final = (1 << 14) + 256
"""More no record has behind its head."""
RECORDS_AT_ONCE: Final = 128
"""Are decoded before others have their turn, at about 2 us each."""
WORDS_BYTES: Final = 1 << 20
"""A record that carries nothing for whom it is (new keys, which cost 100 us and an answer; a wish to begin anew) may
come for each so many bytes ..."""
WORDS_FIRST: Final = 8
"""... and so many before."""
ENCODED_BYTES: Final = 65_536
"""So much is encoded at a time: memory that `ssl` has taken for it, it keeps as long as there is the connection."""
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
        self.greeting_s = 0.0
        """The CPU time that the last step of the handshake took, in seconds, also when it failed."""
        self.records = 0
        """That were decoded, ever."""
        self.is_behind = False
        """Whether records have come that are not decoded yet: to be asked for with no further bytes."""
        self._kept = b""
        """What has come of records behind the last one that was decoded."""
        self._words_left = WORDS_FIRST * WORDS_BYTES

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
        finally:
            self.greeting_s = time.thread_time() - began_s
        return self.greeting_s

    def words(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()

    def _why(self, error: ssl.SSLError) -> str:
        return why_not(error, "the client" if self._is_server else "the server")

    # -- what is said inside ------------------------------------------------------------------------------------------

    def decode(self, data: bytes) -> bytes:
        """The plain bytes that these complete; often none. Raises TlsError.

        One record after the other, so that it is seen what each brings; of many that came at once a part, see
        `is_behind`.
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
        """What is to be decoded now, and from where on: of a record of which a part is kept, no more is joined than
        that."""
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
            self._words_left -= WORDS_BYTES
            if self._words_left < 0:
                raise TlsError("records come that carry nothing, one after the other") from None
        except ssl.SSLZeroReturnError:
            self.has_ended = True  # both sides have said so
        except ssl.SSLError as error:
            raise TlsError(self._why(error)) from None
        self._words_left = min(self._words_left + len(record), WORDS_FIRST * WORDS_BYTES)

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        """What is to be sent for these. Never raises: `decode` tells what is wrong with the other side."""
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
        """Nothing is sent any more, but for words that say so."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            return  # the other side has not said so, and need not


def _size_of(data: bytes, at: int) -> int:
    """Of the record that begins there, as it says; one that is too large is told so by its head."""
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
    """What went wrong, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {other} is refused: {error.verify_message or error.reason}"
    known = _REASONS.get(error.reason or "")
    if known is not None:
        return known.format(other=other)
    return f"{other} does not speak TLS as it is spoken here: {(error.reason or str(error)).replace('_', ' ').lower()}"
