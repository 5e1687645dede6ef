"""Provide TLS in memory: a certificate for tests, and a transform of a connection's bytes with `ssl`."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandq.model.errors import ProtocolError
from sandq.server.send_queue import Buffer

NAME = "localhost"
READ_BYTES = 65_536


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server with a self-signed certificate, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as directory:
        path = Path(directory, "pem")
        path.write_bytes(pem + secret)
        server.load_cert_chain(path)
    client = ssl.create_default_context(cadata=pem.decode())
    return server, client


class TlsTransform:
    """Encrypts and decrypts the bytes of one end of a connection."""

    records = 0
    is_behind = False

    def __init__(self, is_server: bool = True) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = contexts()[0 if is_server else 1]
        name = None if is_server else NAME
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, name)
        self.is_open = False
        self.has_ended = False

    def decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        try:
            self._greet()
            plain = bytearray()
            while self.is_open and not self.has_ended:
                piece = self._tls.read(READ_BYTES)
                plain += piece
                self.has_ended = not piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ProtocolError(f"this is not TLS as it is spoken here: {error.reason}") from None
        return bytes(plain) if self.is_open else b""

    def encode(self, plain: Sequence[Buffer]) -> bytes:
        if not self.is_open:
            self._greet_on()
        for buffer in plain:
            self._tls.write(buffer)
        return self._outgoing.read()

    def end(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            return  # the peer has not closed its direction; TLS does not require that

    def _greet(self) -> None:
        if not self.is_open:
            self._tls.do_handshake()
            self.is_open = True

    def _greet_on(self) -> None:
        try:
            self._greet()
        except ssl.SSLError:
            return  # the handshake needs more bytes, or has failed: `decode` reports a failure
