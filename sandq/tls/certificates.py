"""The certificate of a node, its key and its authorities: read from files, and reloaded when the files change.

Open connections continue unchanged; new handshakes use the files read last. If a file is invalid, or if only the
certificate or only the key has been replaced so far, the current certificates stay in use. The error is logged, and the
files are read again when they change.
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
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sandq.model.config_tls import ACCEPT, REQUIRE, TlsSection
from sandq.model.errors import SandqError, StartupError
from sandq.model.logger import get_logger
from sandq.storage.secret_file import read_private
from sandq.tls.names import ends_at, is_of_host
from sandq.tls.session import TlsError, TlsSession

CHECK_S: Final = 5.0
"""Interval in s at which the files are checked for changes."""
UNUSABLE_EVERY: Final = 12
"""Number of checks after which unchanged invalid files are read again, because the cause may be elsewhere."""
FILE_BYTES: Final = 4 << 20
"""Maximum size of a file of certificates. All authorities of a typical system have 200 KiB."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Cipher suites of TLS 1.2, only with forward secrecy, so that a leaked key does not reveal earlier traffic."""

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_CRL_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_CRL_END: Final = b"-----END X509 CRL-----"
_ROUND_TRIPS: Final = 4
"""Maximum number of round trips of a handshake."""

log = get_logger("sandq.tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The content of the files at one time, and the contexts created from it."""

    chain: tuple[x509.Certificate, ...]
    """The node's own certificate, then the intermediate certificates."""
    authorities: tuple[x509.Certificate, ...]
    revoked: tuple[x509.CertificateRevocationList, ...]
    client: ssl.SSLContext
    """Context of the client port."""
    http: ssl.SSLContext
    """Context of the HTTP port."""
    sql: ssl.SSLContext
    """Context of the SQL port."""
    peer: ssl.SSLContext
    """Context for accepting a connection of a peer."""
    dial: ssl.SSLContext
    """Context for dialling a peer. `names.is_of_node` then checks the peer's certificate."""
    inside: ssl.SSLContext
    """Context of this node as a client: for requests to the HTTP ports of nodes, and for pushes."""


class Certificates:
    """The certificates of a node. Raises StartupError if the files cannot be used at start."""

    def __init__(self, settings: TlsSection) -> None:
        self.settings = settings
        self.error: str | None = None
        """Reason why the current files cannot be used. None if they are in use."""
        self.reloads = 0
        """Number of reloads with different content."""
        self._versions = self._file_versions()
        self._contents = _read(settings)
        self.loaded = _load(settings, *self._contents)
        self._checks = 0

    def name_for(self, host: str, *others: str) -> str:
        """Return the name against which a client that connects to `host` should check this node's certificate.

        The result is the first name of `host` and `others` for which the certificate is issued, or else `host`."""
        certificate = self.loaded.chain[0]
        return next((name for name in (host, *others) if name and is_of_host(certificate, name)), host)

    def ends(self) -> Iterator[tuple[str, datetime.datetime]]:
        """Yield (setting, time of the first expiry in the setting's file)."""
        for setting, found in (("cert_file", self.loaded.chain), ("ca_file", self.loaded.authorities)):
            if found:
                yield setting, min(map(ends_at, found))
        ends = [one.next_update_utc for one in self.loaded.revoked if one.next_update_utc is not None]
        if ends:
            yield "crl_file", min(ends)

    def check(self) -> bool:
        """Reload the files if they have changed. Return whether different certificates are in use now.

        Call it in a thread, because it may block."""
        versions = self._file_versions()
        self._checks += 1
        if versions == self._versions and (self.error is None or self._checks % UNUSABLE_EVERY):
            return False
        try:
            contents = _read(self.settings)
            loaded = self.loaded if contents == self._contents else _load(self.settings, *contents)
        except (SandqError, OSError, ValueError) as error:  # OSError: for example, too many open files
            why = error.message if isinstance(error, SandqError) else str(error)
            if self.error != why:
                log.error("the certificates are not changed: the files cannot be used", error=why)
            self.error = why
            self._versions = versions
            return False
        is_new = loaded is not self.loaded
        # `versions` is older than the content, so the next check finds a change during the read.
        self._versions, self._contents, self.loaded, self.error = versions, contents, loaded, None
        if is_new:
            self.reloads += 1
            ends = {setting: at.isoformat() for setting, at in self.ends()}
            log.info("the certificates were read again", **ends)
        return is_new

    async def follow(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Check the files every `CHECK_S` until cancelled. Call `on_change` after each reload."""
        while True:
            await anyio.sleep(CHECK_S)
            if await anyio.to_thread.run_sync(self.check):
                on_change()

    def _file_versions(self) -> tuple[tuple[int, ...] | None, ...]:
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
    """Return the content of the files. Raise StartupError if one cannot be read."""
    cert_file, key_file, ca_file, crl_file = settings.cert_file, settings.key_file, settings.ca_file, settings.crl_file
    if cert_file is None or key_file is None:
        raise StartupError("TLS needs tls.cert_file and tls.key_file")
    certificate = read_file(cert_file, "tls.cert_file")
    authorities = read_file(ca_file, "tls.ca_file") if ca_file is not None else b""
    revoked = read_file(crl_file, "tls.crl_file") if crl_file is not None else b""
    return certificate, read_private(key_file, "tls.key_file"), authorities, revoked


def read_file(path: Path, setting: str) -> bytes:
    """Return the content of a file of certificates. Raise StartupError if it cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise StartupError(f"{setting} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > FILE_BYTES:
        raise StartupError(f"{setting} {path} has more than {FILE_BYTES} bytes")
    return content


def certificates_in(content: bytes, path: Path | None, setting: str) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a file. Raise StartupError if there is none, or if one is invalid or incomplete."""
    try:
        found = tuple(x509.load_pem_x509_certificates(content))
    except ValueError:
        raise StartupError(f"{setting} {path} holds no certificates: PEM is expected ({_BEGIN.decode()})") from None
    if content.count(_BEGIN) > len(found):
        raise StartupError(f"{setting} {path} is not whole: {content.count(_BEGIN)} begin, and {len(found)} end")
    return found


def lists_in(content: bytes, path: Path | None) -> tuple[x509.CertificateRevocationList, ...]:
    """Return the revocation lists of a file. Raise StartupError if there is none, or one is invalid or incomplete."""
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
    client.num_tickets = 0  # clients do a full handshake each time, and need no session tickets
    http.set_alpn_protocols(["http/1.1"])
    sql = of(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_NONE)  # SQL clients authenticate with a password
    # Without authorities, there is no TLS between nodes, and the next two contexts are not used.
    peer = of(ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED)
    peer.num_tickets = 0
    dial = of(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    inside = of(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    inside.check_hostname = True
    if not text:
        inside.load_default_certs()  # trust the authorities of the machine
    # Also trust the own certificate, even without its issuer. Do not do so with revocation lists, because its issuer
    # may have none.
    if not revoked:
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
    """Return a context with the options that all contexts of this module share."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _take_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, settings: TlsSection) -> None:
    """Load certificate and key into a context.

    `ssl` can only read files, so pass the bytes as files in memory. If it read the original files again, their content
    could differ from the checked content."""
    with _in_memory(certificate) as cert_path, _in_memory(key) as key_path:
        try:
            context.load_cert_chain(cert_path, key_path, password=lambda: b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                why = f"is not the key of the first certificate of tls.cert_file {settings.cert_file}"
            elif b"ENCRYPTED" in key:
                why = "is encrypted, and a node cannot ask for the password; decrypt it with openssl pkey -in ..."
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
    """Load revocation lists into a context.

    `ssl` can only read the lists from a file. It would also trust certificates in this file, so write only the lists to
    it."""
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
    """Return a path to a file in memory with this content."""
    descriptor = os.memfd_create("tls")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trusts_itself(loaded: Loaded) -> str | None:
    """Return the reason why the node's authorities do not trust its own certificate. None if they trust it.

    The test is a handshake of the node with itself, in memory."""
    server, client = TlsSession(loaded.peer, is_server=True), TlsSession(loaded.dial, is_server=False)
    try:
        client.greet()
        for _ in range(_ROUND_TRIPS):
            server.greet(client.words())
            client.greet(server.words())
    except TlsError as error:
        return error.message
    return None if server.is_open and client.is_open else "the handshake does not end"
