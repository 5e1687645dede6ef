"""The certificate of a node, its key and its authorities: read from their files, and again when these change.

What is open goes on as it is; new handshakes go by what was read last. A file that cannot be used, or of a pair the
half that is not written yet, changes nothing: it is told, and read again when it changes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sandq.model.config_tls import ACCEPT, REQUIRE, TlsSection
from sandq.model.errors import SandqError, StartupError
from sandq.storage.secret_file import read_private
from sandq.tls.names import ends_at, is_of_host
from sandq.tls.session import TlsError, TlsSession

LOOK_S: Final = 5.0
"""How often it is looked whether the files are others ..."""
UNUSABLE_EVERY: Final = 12
"""... and every so many times whether those that could not be used can be: what is wrong may lie elsewhere."""
FILE_BYTES: Final = 4 << 20
"""Of certificates: authorities of a whole system have 200 KiB."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2, what keeps what was said secret when the key is lost later."""

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_CRL_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_CRL_END: Final = b"-----END X509 CRL-----"
_GREETINGS: Final = 4
"""A handshake takes no more turns."""

log = structlog.get_logger("sandq.tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was read at one time, and the contexts that are made of it."""

    chain: tuple[x509.Certificate, ...]
    """The node's own first."""
    authorities: tuple[x509.Certificate, ...]
    revoked: tuple[x509.CertificateRevocationList, ...]
    client: ssl.SSLContext
    """Of the client port."""
    http: ssl.SSLContext
    sql: ssl.SSLContext
    peer: ssl.SSLContext
    """Of the side that accepts a peer ..."""
    dial: ssl.SSLContext
    """... and of the side that dials one; who it is, its certificate says: see `names.is_of_node`."""
    inside: ssl.SSLContext
    """Of this node as a client of nodes: its HTTP, its pushes."""


class Certificates:
    """Those of a node. Raises StartupError for what cannot be used."""

    def __init__(self, settings: TlsSection) -> None:
        self.settings = settings
        self.error: str | None = None
        """Why what is in the files is not what is used."""
        self.reloads = 0
        """How often others were read."""
        self._versions = self._look()
        self._contents = _read(settings)
        self.loaded = _load(settings, *self._contents)
        self._looks = 0

    def name_for(self, host: str, *others: str) -> str:
        """Under which name this node's certificate is to be checked by who reaches it at a host: that, or one of the
        others when it is not issued for that."""
        certificate = self.loaded.chain[0]
        return next((name for name in (host, *others) if name and is_of_host(certificate, name)), host)

    def ends(self) -> Iterator[tuple[str, datetime.datetime]]:
        """When what ends first of each file does: (setting, instant)."""
        for setting, found in (("cert_file", self.loaded.chain), ("ca_file", self.loaded.authorities)):
            if found:
                yield setting, min(map(ends_at, found))
        ends = [one.next_update_utc for one in self.loaded.revoked if one.next_update_utc is not None]
        if ends:
            yield "crl_file", min(ends)

    def look(self) -> bool:
        """Read the files again if they are others; whether something else is used now. In a thread: it may take a
        while."""
        versions = self._look()
        self._looks += 1
        if versions == self._versions and (self.error is None or self._looks % UNUSABLE_EVERY):
            return False
        try:
            contents = _read(self.settings)
            loaded = self.loaded if contents == self._contents else _load(self.settings, *contents)
        except (SandqError, OSError, ValueError) as error:  # it may be that no more files can be opened
            why = error.message if isinstance(error, SandqError) else str(error)
            if self.error != why:
                log.error("the certificates are not changed: the files cannot be used", error=why)
            self.error = why
            self._versions = versions
            return False
        is_new = loaded is not self.loaded
        # What came while it was read is read the next time.
        self._versions, self._contents, self.loaded, self.error = versions, contents, loaded, None
        if is_new:
            self.reloads += 1
            ends = {setting: at.isoformat() for setting, at in self.ends()}
            log.info("the certificates were read anew", **ends)
        return is_new

    async def follow(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Look every `LOOK_S` until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            if await anyio.to_thread.run_sync(self.look):
                on_change()

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        settings = self.settings
        return tuple(
            _version(path) for path in (settings.cert_file, settings.key_file, settings.ca_file, settings.crl_file)
        )


def _version(path: Path | None) -> tuple[int, ...] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)


def _read(settings: TlsSection) -> tuple[bytes, bytes, bytes, bytes]:
    """What is in the files."""
    cert_file, key_file, ca_file, crl_file = settings.cert_file, settings.key_file, settings.ca_file, settings.crl_file
    if cert_file is None or key_file is None:
        raise StartupError("TLS needs tls.cert_file and tls.key_file")
    certificate = read_file(cert_file, "tls.cert_file")
    authorities = read_file(ca_file, "tls.ca_file") if ca_file is not None else b""
    revoked = read_file(crl_file, "tls.crl_file") if crl_file is not None else b""
    return certificate, read_private(key_file, "tls.key_file"), authorities, revoked


def read_file(path: Path, setting: str) -> bytes:
    """What a file of certificates holds. StartupError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise StartupError(f"{setting} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > FILE_BYTES:
        raise StartupError(f"{setting} {path} has more than {FILE_BYTES} bytes")
    return content


def certificates_in(content: bytes, path: Path | None, setting: str) -> tuple[x509.Certificate, ...]:
    """The certificates of a file. StartupError when there is none, something else, or one that is not whole."""
    try:
        found = tuple(x509.load_pem_x509_certificates(content))
    except ValueError:
        raise StartupError(f"{setting} {path} holds no certificates: PEM is expected ({_BEGIN.decode()})") from None
    if content.count(_BEGIN) > len(found):
        raise StartupError(f"{setting} {path} is not whole: {content.count(_BEGIN)} begin, and {len(found)} end")
    return found


def lists_in(content: bytes, path: Path | None) -> tuple[x509.CertificateRevocationList, ...]:
    """The lists of revoked certificates of a file. StartupError when there is none, something else, or one that is not
    whole."""
    parts = [part + _CRL_END for part in content.split(_CRL_END)[:-1]]
    try:
        lists = tuple(x509.load_pem_x509_crl(part.strip()) for part in parts)
    except ValueError:
        lists = ()
    if not lists:
        expected = _CRL_BEGIN.decode()
        raise StartupError(f"tls.crl_file {path} holds no list of revoked certificates: PEM is expected ({expected})")
    if content.count(_CRL_BEGIN) > len(lists):
        raise StartupError(f"tls.crl_file {path} is not whole: {content.count(_CRL_BEGIN)} begin, {len(lists)} end")
    return lists


def _load(settings: TlsSection, certificate: bytes, key: bytes, authorities: bytes, lists: bytes) -> Loaded:
    chain = certificates_in(certificate, settings.cert_file, "tls.cert_file")
    known = certificates_in(authorities, settings.ca_file, "tls.ca_file") if settings.ca_file is not None else ()
    revoked = lists_in(lists, settings.crl_file) if settings.crl_file is not None else ()
    if chain[0].not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        log.warning("the certificate of this node has ended: who checks it refuses it", file=str(settings.cert_file))
    asked = {ACCEPT: ssl.CERT_OPTIONAL, REQUIRE: ssl.CERT_REQUIRED}.get(settings.client_certificates, ssl.CERT_NONE)
    text = authorities.decode("ascii", "ignore")

    def of(protocol: int, verify: ssl.VerifyMode, trusted: str = text) -> ssl.SSLContext:
        context = new_context(protocol)
        context.check_hostname = False
        _take_pair(context, certificate, key, settings)
        if verify != ssl.CERT_NONE and trusted:
            _trust(context, trusted, settings)
            if revoked:
                _take_lists(context, revoked, settings)
        context.verify_mode = verify
        return context

    client, http = of(ssl.PROTOCOL_TLS_SERVER, asked), of(ssl.PROTOCOL_TLS_SERVER, asked)
    client.num_tickets = 0  # its clients begin anew each time, and need none
    http.set_alpn_protocols(["http/1.1"])
    sql = of(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_NONE)  # who it is, a password says
    # Without authorities there is no TLS between nodes, and these are not used.
    peer = of(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED)
    peer.num_tickets = 0
    dial = of(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    inside = of(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    inside.check_hostname = True
    if not text:
        inside.load_default_certs()  # it trusts whom the machine does ...
    if not revoked:  # ... and its own certificate, whoever issued that; for such there is no list
        inside.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        inside.load_verify_locations(cadata=_first(certificate))
    return Loaded(
        chain=chain,
        authorities=known,
        revoked=revoked,
        client=client,
        http=http,
        sql=sql,
        peer=peer,
        dial=dial,
        inside=inside,
    )


def new_context(protocol: int) -> ssl.SSLContext:
    """A context as all are here."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _take_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, settings: TlsSection) -> None:
    """`ssl` reads them from files alone: from memory, then, that what was looked at is what is used."""
    with _in_memory(certificate) as cert_path, _in_memory(key) as key_path:
        try:
            context.load_cert_chain(cert_path, key_path, password=lambda: b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                why = f"is not the key of the first certificate of tls.cert_file {settings.cert_file}"
            elif b"ENCRYPTED" in key:
                why = "is encrypted: nobody is there to be asked for its password; openssl pkey -in ... takes it off"
            else:
                why = f"cannot be used with tls.cert_file {settings.cert_file}: {_reason(error)}"
            raise StartupError(f"tls.key_file {settings.key_file} {why}") from None


def _trust(context: ssl.SSLContext, authorities: str, settings: TlsSection) -> None:
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise StartupError(f"tls.ca_file {settings.ca_file} cannot be used: {_reason(error)}") from None


def _take_lists(
    context: ssl.SSLContext, lists: tuple[x509.CertificateRevocationList, ...], settings: TlsSection
) -> None:
    """`ssl` reads lists of revoked certificates from files alone, too; a certificate among them it would trust."""
    with _in_memory(b"".join(one.public_bytes(serialization.Encoding.PEM) for one in lists)) as path:
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as error:
            raise StartupError(f"tls.crl_file {settings.crl_file} cannot be used: {_reason(error)}") from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _first(certificates: bytes) -> str:
    end = _BEGIN.replace(b"BEGIN", b"END")
    return (certificates.partition(end)[0] + end).decode("ascii", "ignore") + "\n"


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path to a file that is in memory only."""
    descriptor = os.memfd_create("tls")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trusts_itself(loaded: Loaded) -> str | None:
    """Why the node's authorities do not trust its own certificate; None: they do. By a handshake with itself."""
    server, client = TlsSession(loaded.peer, is_server=True), TlsSession(loaded.dial, is_server=False)
    try:
        client.greet()
        for _ in range(_GREETINGS):
            server.greet(client.words())
            client.greet(server.words())
    except TlsError as error:
        return error.message
    return None if server.is_open and client.is_open else "the handshake does not end"
