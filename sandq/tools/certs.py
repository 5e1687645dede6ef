"""`sandq certs`: a private certificate authority, and the certificates that it issues for nodes and clients.

Keys are ECDSA P-256. Only the owner of the key files can read them. Existing files are replaced only with `--force`.
Each file is replaced atomically, and running nodes load the new file within seconds.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandq.model.errors import Conflict, InvalidRequest, StartupError
from sandq.model.names import check_name

CA: Final = "ca"
CRL: Final = "crl.pem"
CA_DAYS: Final = 3650
DAYS: Final = 365
MAX_DAYS: Final = 36_500
BACKDATED: Final = datetime.timedelta(hours=1)
"""Certificates become valid this long before they are issued, because the clocks of other machines may be behind."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
NAME_CHARS: Final = 64
"""Maximum length of a common name, from X.509."""
MAX_HOSTS: Final = 100
FILE_MODE: Final = 0o644
KEY_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


class Pair(NamedTuple):
    """The paths of a certificate and of its key."""

    certificate: Path
    key: Path


def files_of(directory: Path, name: str) -> Pair:
    """Return the paths of the certificate with this name and of its key."""
    return Pair(directory / f"{name}.pem", directory / f"{name}-key.pem")


def make_ca(out: Path, *, name: str = "sandq", days: int = CA_DAYS, force: bool = False) -> Pair:
    """Create an authority. Raises Conflict if an authority exists in `out`. Raises InvalidRequest, StartupError."""
    pair = files_of(out, CA)
    _check_free(pair, force, "its clients and nodes would no longer trust the certificates that it has issued")
    _check_days(days)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, key.public_key(), days).issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(issues=True), critical=True)
    _write(pair, builder.sign(key, hashes.SHA256()), key)
    return pair


def make_node(
    node_id: str, hosts: Sequence[str], ca: Path, out: Path, *, days: int = DAYS, force: bool = False
) -> Pair:
    """Issue the certificate of a node, for its id, these hosts and loopback. Raises InvalidName, and the errors of
    `make_ca`."""
    check_name("node", node_id)
    if len(hosts) > MAX_HOSTS:
        raise InvalidRequest(f"{len(hosts)} hosts are too many: a certificate has at most {MAX_HOSTS}")
    names = [x509.DNSName(node_id), *(_host(host) for host in dict.fromkeys((*hosts, *LOOPBACK)) if host != node_id)]
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _issue(node_id, names, usage, ca, out, days, force)


def make_client(name: str, ca: Path, out: Path, *, days: int = DAYS, force: bool = False) -> Pair:
    """Issue the certificate of a client. Its common name is the name of the client. Raises the errors of `make_ca`."""
    return _issue(name, [], [ExtendedKeyUsageOID.CLIENT_AUTH], ca, out, days, force)


def _issue(
    name: str,
    alternatives: Sequence[x509.GeneralName],
    usage: Sequence[x509.ObjectIdentifier],
    ca: Path,
    out: Path,
    days: int,
    force: bool,
) -> Pair:
    if name == CA or "/" in name or name in (".", ".."):
        raise InvalidRequest(f"{name!r:.80} cannot be the name of a certificate: choose another name")
    pair = files_of(out, name)
    _check_free(pair, force, "use --force to issue a new one")
    _check_days(days)
    authority, authority_key = _open_ca(ca)
    key = ec.generate_private_key(ec.SECP256R1())
    # The alternative names identify a node, so its common name may be shortened.
    subject = _subject(name[:NAME_CHARS] if alternatives else name)
    builder = _builder(subject, key.public_key(), days, authority.not_valid_after_utc)
    builder = builder.issuer_name(authority.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(issues=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    _write(pair, builder.sign(authority_key, hashes.SHA256()), key)
    ca_copy = out / f"{CA}.pem"
    if not ca_copy.exists():  # so that the pair and its authority are in one directory
        _put(ca_copy, authority.public_bytes(serialization.Encoding.PEM), FILE_MODE)
    return pair


def revoke(certificates: Sequence[Path], ca: Path, out: Path) -> tuple[Path, int]:
    """Add certificates to the authority's list of revoked certificates. Without certificates, write the list again.

    Returns the path of the list for nodes, and the number of its entries. Raises Conflict if another authority issued
    one of the certificates, InvalidRequest, StartupError.
    """
    authority, authority_key = _open_ca(ca)
    own_list = ca / CRL
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
    builder = builder.last_update(now - BACKDATED).next_update(authority.not_valid_after_utc)
    # Identify the authority by its key: a new authority may have the same name as the old one, and nodes may have the
    # lists of both.
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
    before = _revoked(own_list, authority)
    entries = {entry.serial_number: entry for entry in before}
    for path in certificates:
        certificate = _certificate(path)
        if certificate.issuer != authority.subject or not _is_issued_by(certificate, authority):
            raise Conflict(f"{path} was not issued by {files_of(ca, CA).certificate}")
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
        entries.setdefault(certificate.serial_number, entry)
    for one in entries.values():
        builder = builder.add_revoked_certificate(one)
    content = builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    for path in dict.fromkeys((own_list, out / CRL)):
        _put(path, content, FILE_MODE)
    return out / CRL, len(entries)


def _revoked(path: Path, authority: x509.Certificate) -> Iterator[x509.RevokedCertificate]:
    """Yield the entries of an authority's list. If there is no list yet, yield nothing."""
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return iter(())
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} is not a list of revoked certificates: {error}") from None
    if found.issuer != authority.subject:
        raise StartupError(f"{path} is the list of another authority")
    return iter(found)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InvalidRequest(f"{path} is not a certificate in PEM") from None


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def for_node(pair: Pair) -> Iterator[str]:
    """Yield the lines for the node's configuration file."""
    yield "tls:"
    yield f"  cert_file: {pair.certificate.absolute()}"
    yield f"  key_file: {pair.key.absolute()}"
    yield f"  ca_file: {(pair.certificate.parent / f'{CA}.pem').absolute()}"


def for_client(pair: Pair) -> str:
    """Return a command that uses the client's certificate."""
    ca = pair.certificate.parent / f"{CA}.pem"
    return f"sandctl --ca {ca} --cert {pair.certificate} --cert-key {pair.key} cluster status"


def _open_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pair = files_of(directory, CA)
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    except OSError as error:
        raise StartupError(
            f"{error.filename} cannot be read: {error.strerror or error}. To create an authority, run: sandq certs ca "
            f"--out {directory}"
        ) from None
    except (ValueError, TypeError):
        raise StartupError(f"{directory}: {CA}.pem and {CA}-key.pem are not a certificate and its key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise StartupError(f"{pair.key} is not the key of {pair.certificate}")
    if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise StartupError(f"{pair.certificate} has expired: create a new authority")
    return certificate, key


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, latest: datetime.datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    ends = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends if latest is None else min(ends, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issues,
        crl_sign=issues,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    if not 1 <= len(name) <= NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"a name in a certificate has 1 to {NAME_CHARS} printable characters, not {name!r:.80}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    try:
        if not host or any(char in host for char in "/:@ \t\n"):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise InvalidRequest(f"{host!r:.80} is no host: a name or an IP address, without a port, is expected") from None


def _check_days(days: int) -> None:
    if not 1 <= days <= MAX_DAYS:
        raise InvalidRequest(f"--days {days} is not within 1 to {MAX_DAYS}")


def _check_free(pair: Pair, force: bool, why: str) -> None:
    existing = next((path for path in pair if path.exists()), None)
    if existing is not None and not force:
        raise Conflict(f"{existing} is there already and is not replaced: {why}")


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _put(pair.key, key.private_bytes(encoding, form, serialization.NoEncryption()), KEY_MODE)
    _put(pair.certificate, certificate.public_bytes(encoding), FILE_MODE)


def _put(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically. The file has its mode from the beginning, so that other users can never read a key."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StartupError(f"{path} cannot be written: {error.strerror or error}") from None
