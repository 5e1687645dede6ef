"""Read from a certificate the client, node or host to which it was issued."""

from __future__ import annotations

import datetime
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandq.model.config_tls import SAN
from sandq.model.config_types import is_loopback

NAME_CHARS: Final = 255
"""Maximum length of a client's name. Longer names are ignored."""

_URI, _DNS, _EMAIL = x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name


def read(der: bytes) -> x509.Certificate | None:
    """Parse a certificate from a handshake. None if it is missing or invalid."""
    try:
        return x509.load_der_x509_certificate(der) if der else None
    except ValueError:
        return None


def client_name(certificate: x509.Certificate | None, of: str) -> str | None:
    """Return the name of a client from its certificate. None if the certificate has no usable name.

    The name is the subject's common name. If `of` is "san", it is the first URI, DNS name or e-mail address among the
    subject alternative names."""
    if certificate is None:
        return None
    names: list[str] = []
    try:
        if of == SAN:
            found = _alternatives(certificate)
            names = [str(name.value) for name in found if isinstance(name, _URI | _DNS | _EMAIL)]
        else:
            names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except ValueError:
        return None
    name = names[0] if names else ""
    return name if 0 < len(name) <= NAME_CHARS and name.isprintable() else None


def is_of_node(certificate: x509.Certificate | None, node_id: str) -> bool:
    """Return whether a certificate belongs to a node: its DNS names include the node's id, and it is valid for servers.

    A client's certificate is not valid for servers, so a client with the name of a node cannot pose as the node."""
    if certificate is None:
        return False
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.SERVER_AUTH not in usage:
            return False
    except (x509.ExtensionNotFound, ValueError):
        return False
    return node_id in _dns_names(certificate)


def host_names(certificate: x509.Certificate) -> list[str]:
    """Return the hosts that a certificate is issued for: DNS names and IP addresses."""
    found = _alternatives(certificate)
    return [str(name.value) for name in found if isinstance(name, x509.DNSName | x509.IPAddress)]


def is_of_host(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a client that connects to `host` accepts the certificate for it."""
    wanted = host.lower()
    first, dot, rest = wanted.partition(".")
    names = set(map(str.lower, host_names(certificate)))
    return wanted in names or bool(first and dot and not is_loopback(wanted) and f"*.{rest}" in names)


def ends_at(certificate: x509.Certificate) -> datetime.datetime:
    """Return the time at which a certificate expires."""
    return certificate.not_valid_after_utc


def _dns_names(certificate: x509.Certificate) -> list[str]:
    return [str(name.value) for name in _alternatives(certificate) if isinstance(name, x509.DNSName)]


def _alternatives(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return []
