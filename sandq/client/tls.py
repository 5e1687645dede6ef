"""TLS of a client: the trusted authorities, and the client's certificate.

Files are read again when they change, so that a client that runs for months uses the current certificate.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from sandq.model.errors import InvalidRequest

__all__ = ["ClientTls", "refusal_of", "tls_of"]

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")

_Versions = tuple[tuple[int, int, int] | None, ...]


class ClientTls:
    """The TLS configuration of a client."""

    def __init__(
        self,
        context: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        *,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        name_of: Callable[[str], str] = lambda host: host,
        falls_back: bool = False,
    ) -> None:
        """`context`: the context to use. None: build a context from the files (without `ca`, trust the authorities of
        the machine).

        `name_of`: returns the name against which a host's certificate is checked. `falls_back`: connect without TLS to
        a server that does not speak TLS. Raises InvalidRequest if a file cannot be used.
        """
        self.falls_back = falls_back
        self._files = (ca, cert, key)
        self._own = context is None
        self._versions: _Versions = ()
        self._context: ssl.SSLContext | Callable[[], ssl.SSLContext] = (
            context if context is not None else self._build_context()
        )
        self.name_of = name_of

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; read changed files again."""
        if self._own and self._file_versions() != self._versions:
            # If a file is unusable, for example half written, keep the present context.
            with contextlib.suppress(InvalidRequest):
                self._context = self._build_context()
        context = self._context
        return context if isinstance(context, ssl.SSLContext) else context()

    def _build_context(self) -> ssl.SSLContext:
        versions = self._file_versions()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        ca, cert, key = self._files
        if ca is None:
            context.load_default_certs()
        else:
            with _refused("ca", ca):
                context.load_verify_locations(ca)
        if cert is not None:
            with _refused("key" if key is not None else "cert", key or cert):
                cert.open("rb").close()  # raises an error that names the missing file
                if key is not None:
                    key.open("rb").close()
                context.load_cert_chain(cert, key, password=lambda: b"")
        self._versions = versions
        return context

    def _file_versions(self) -> _Versions:
        return tuple(map(_version, self._files))


def tls_of(
    tls: bool | ssl.SSLContext | None,
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    prefix: str = "SANDQ_",
) -> ClientTls | None:
    """Return the TLS configuration from the arguments. Omitted arguments are read from the environment.

    The variables are `SANDQ_TLS`, `SANDQ_CA`, `SANDQ_CERT`, `SANDQ_KEY`. Returns None without TLS. Raises
    InvalidRequest.
    """
    files: dict[str, str | os.PathLike[str] | None] = {"ca": ca, "cert": cert, "key": key}
    for name, path in files.items():
        if path is not None and (not isinstance(path, str | os.PathLike) or not str(path)):
            raise InvalidRequest(f"{name}: the path of a file (PEM) is expected, not {path!r:.80}")
    given = [name for name, path in files.items() if path is not None]
    if tls is not None and not isinstance(tls, bool | ssl.SSLContext):
        raise InvalidRequest(f"tls: True, False or an ssl.SSLContext is expected, not {type(tls).__name__}")
    if isinstance(tls, ssl.SSLContext) or tls is False:
        if given:
            what = "a context has its own files" if tls else "without TLS there are none"
            raise InvalidRequest(f"tls and {', '.join(given)}: {what}")
        return ClientTls(tls) if tls else None
    for name, path in files.items():
        files[name] = path if path is not None else environ.get(f"{prefix}{name.upper()}") or None
    if tls is None and not given and not files["ca"] and not files["cert"] and not files["key"]:
        wanted = environ.get(f"{prefix}TLS", "").strip().lower()
        if wanted not in _TRUE + _FALSE:
            raise InvalidRequest(f"environment {prefix}TLS: 1 or 0 is expected, not {wanted!r:.40}")
        if wanted in _FALSE:
            return None
    if files["key"] is not None and files["cert"] is None:
        raise InvalidRequest("key: it is the key of no certificate: give cert, too")
    paths = [None if path is None else Path(path) for path in files.values()]
    return ClientTls(ca=paths[0], cert=paths[1], key=paths[2])


_REASONS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate of the client: give cert and key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refuses the handshake; it may require a certificate: give cert and key",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses the client's certificate",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it refuses the client's certificate: it was revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it refuses the client's certificate: it has ended",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses the client's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses the client's certificate: it does not know who issued that",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks a version of TLS before 1.2",
}
NO_TLS: Final = "it does not speak TLS: connect without, or turn it on there (tls.client of the node)"


def refusal_of(error: ssl.SSLError) -> str:
    """Return why a connection failed, and what to do, for an error message."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or reason
        if "local issuer" in why or "self-signed" in why or "self signed" in why:
            why += "; to trust its authority, give ca"
        return f"its certificate is refused: {why}"
    if speaks_no_tls(error):
        return NO_TLS
    return _REASONS.get(reason) or f"TLS fails: {(reason or str(error)).replace('_', ' ').lower()}"


def speaks_no_tls(error: ssl.SSLError) -> bool:
    """Return whether the peer does not speak TLS."""
    return error.reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


def _version(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


@contextlib.contextmanager
def _refused(name: str, path: Path) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = "it is not the key of the certificate"
        else:
            why = f"it cannot be used: {(error.reason or 'PEM is expected').replace('_', ' ').lower()}"
        raise InvalidRequest(f"{name} {path}: {why}") from None
    except OSError as error:
        raise InvalidRequest(f"{name} {error.filename or path}: {error.strerror or error}") from None
