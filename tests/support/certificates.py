"""Provide a certificate authority for tests. It issues valid certificates of nodes and clients as `sandq certs` does,
and certificates with chosen properties, for example expired ones."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandq.tools.certs import Pair, files_of, make_ca, make_client, make_node

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """`ca`: the certificate file that makes a peer trust this authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = make_ca(directory).certificate

    def node(self, node_id: str, *hosts: str, force: bool = False, days: int = 365) -> Pair:
        return make_node(node_id, hosts, self.directory, self.directory, force=force, days=days)

    def client(self, name: str) -> Pair:
        return make_client(name, self.directory, self.directory)

    def issue(
        self,
        name: str,
        alternatives: Sequence[x509.GeneralName],
        *,
        usage: Sequence[x509.ObjectIdentifier] | None = BOTH,
        days: float = 1.0,
    ) -> Pair:
        """Issue a certificate with chosen properties.

        `days`: time from now until the certificate expires; negative: days since it expired."""
        pair = files_of(self.directory, "ca")
        authority = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        authority_key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        made = files_of(self.directory, name)
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        made.key.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
        made.key.chmod(0o600)
        made.certificate.write_bytes(builder.sign(authority_key, hashes.SHA256()).public_bytes(encoding))
        return made
