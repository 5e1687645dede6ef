"""Tests of a node's certificates: accepted certificates, reasons of refusal, and changes at run time."""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from sandq.model.config_tls import SAN, SUBJECT, TlsSection
from sandq.model.errors import StartupError
from sandq.tls.certificates import UNUSABLE_EVERY, Certificates, new_context
from sandq.tls.names import client_name, is_of_host, is_of_node
from sandq.tls.session import TlsError, TlsSession
from sandq.tools.certs import Pair, revoke
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def settings(pair: Pair, ca: Path | None, **more: str) -> TlsSection:
    values = {"cert_file": str(pair.certificate), "key_file": str(pair.key), **more}
    # type: ignore[arg-type]
    return TlsSection(**values, **({"ca_file": str(ca)} if ca is not None else {"peer": "off"}))


def test_files_that_change_are_read_again(authority: Authority) -> None:
    certificates = Certificates(settings(authority.node("node1"), authority.ca))
    first = certificates.loaded
    assert not certificates.check() and certificates.loaded is first
    authority.node("node1", "other.example", force=True)
    assert certificates.check() and certificates.reloads == 1
    assert certificates.loaded.client is not first.client
    assert is_of_host(certificates.loaded.chain[0], "other.example")
    os.utime(authority.ca)  # touched but unchanged
    assert not certificates.check() and certificates.reloads == 1


def test_a_half_written_pair_changes_nothing(authority: Authority) -> None:
    pair = authority.node("node1")
    certificates = Certificates(settings(pair, authority.ca))
    first = certificates.loaded
    other = authority.node("node2")
    pair.certificate.write_bytes(other.certificate.read_bytes())
    with capture_logs() as logs:
        assert not certificates.check() and not certificates.check()
    assert certificates.loaded is first and "is not the key of the first certificate" in (certificates.error or "")
    assert [entry["log_level"] for entry in logs] == ["error"]  # once
    pair.key.write_bytes(other.key.read_bytes())
    assert certificates.check() and certificates.error is None
    assert is_of_node(certificates.loaded.chain[0], "node2")


@pytest.mark.parametrize("which", ["cert_file", "ca_file", "crl_file"])
def test_half_written_file_of_several_items_is_refused(authority: Authority, tmp_path: Path, which: str) -> None:
    pair, other = authority.node("node1"), Authority(tmp_path / "other")
    lists = revoke([], authority.directory, authority.directory)[0]
    files = {"cert_file": pair.certificate, "ca_file": authority.ca, "crl_file": lists}
    certificates = Certificates(settings(pair, authority.ca, crl_file=str(lists)))
    first = certificates.loaded
    more = revoke([], other.directory, other.directory)[0] if which == "crl_file" else other.ca
    whole = files[which].read_bytes() + more.read_bytes()
    files[which].write_bytes(whole[:-100])
    assert not certificates.check() and certificates.loaded is first
    assert f"tls.{which}" in (certificates.error or "") and "is not whole: 2 begin" in (certificates.error or "")
    files[which].write_bytes(whole)
    assert certificates.check() and certificates.error is None


def test_loading_certificates_is_retried_after_a_system_error(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(settings(authority.node("node1"), authority.ca))
    authority.node("node1", "other.example", force=True)

    def none_left(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as context:
        context.setattr(os, "memfd_create", none_left)
        assert not certificates.check() and "Too many open files" in (certificates.error or "")
    assert any(certificates.check() for _ in range(UNUSABLE_EVERY))
    assert is_of_host(certificates.loaded.chain[0], "other.example")


def shakes_hands(server: Certificates, client: TlsSection) -> bool:
    """Whether a node accepts the certificate of a peer that accepts any certificate."""
    context = new_context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(str(client.cert_file), str(client.key_file))
    here, there = TlsSession(server.loaded.peer, is_server=True), TlsSession(context, is_server=False)
    try:
        there.greet()
        while not (here.is_open and there.is_open):
            here.greet(there.words())
            there.greet(here.words())
    except TlsError:
        return False
    return True


def test_lists_of_authorities_of_the_same_name(authority: Authority, tmp_path: Path) -> None:
    """Revocation lists can follow one another in a file. A certificate in this file is not trusted."""
    other, both, lists = Authority(tmp_path / "other"), tmp_path / "both.pem", tmp_path / "lists.pem"
    lists.write_bytes(
        other.ca.read_bytes()
        + b"".join(revoke([], one.directory, one.directory)[0].read_bytes() for one in (authority, other))
    )
    own, theirs = authority.node("node1"), settings(other.node("node2"), None)
    one = Certificates(settings(own, authority.ca, crl_file=str(lists)))
    assert shakes_hands(one, settings(own, None)) and not shakes_hands(one, theirs)
    both.write_bytes(authority.ca.read_bytes() + other.ca.read_bytes())
    two = Certificates(settings(own, both, crl_file=str(lists)))
    assert shakes_hands(two, settings(own, None)) and shakes_hands(two, theirs)


def test_a_file_that_is_away_is_missed_and_found_again(authority: Authority) -> None:
    pair = authority.node("node1")
    certificates = Certificates(settings(pair, authority.ca))
    kept = pair.certificate.read_bytes()
    pair.certificate.unlink()
    assert not certificates.check() and "cannot be read" in (certificates.error or "")
    pair.certificate.write_bytes(kept)
    assert not certificates.check() and certificates.error is None  # the new certificate is used


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda pair, ca: pair.key.chmod(0o640), "is open to others than its owner (mode 640): chmod 600"),
        (lambda pair, ca: pair.key.unlink(), "tls.key_file"),
        (lambda pair, ca: pair.certificate.write_text("x"), "holds no certificates: PEM is expected"),
        (lambda pair, ca: ca.write_text(""), "tls.ca_file"),
        (lambda pair, ca: pair.key.write_text("x"), "tls.key_file"),
        (lambda pair, ca: pair.certificate.write_bytes(ca.read_bytes()), "is not the key of the first certificate"),
    ],
)
# type: ignore[no-untyped-def]
def test_unusable_certificates_are_refused(authority: Authority, spoil, said: str) -> None:
    pair = authority.node("node1")
    spoil(pair, authority.ca)
    with pytest.raises(StartupError, match=r".") as caught:
        Certificates(settings(pair, authority.ca))
    assert said in caught.value.message


def test_name_for_returns_the_name_in_the_certificate(authority: Authority) -> None:
    certificates = Certificates(settings(authority.issue("n", [x509.DNSName("n1.example")]), None))
    assert certificates.name_for("127.0.0.1", "n1.example", "node1") == "n1.example"
    assert certificates.name_for("127.0.0.1", "node1") == "127.0.0.1"
    assert dict(certificates.ends()).keys() == {"cert_file"}


def test_names_of_clients(authority: Authority) -> None:
    def of(*names: x509.GeneralName, subject: str = "Ada L") -> list[str | None]:
        pair = authority.issue(subject.replace("/", "_"), names)
        found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        return [client_name(found, SUBJECT), client_name(found, SAN)]

    assert of() == ["Ada L", None]
    uri = x509.UniformResourceIdentifier("spiffe://prod/billing")
    assert of(uri, x509.DNSName("b")) == ["Ada L", "spiffe://prod/billing"]
    assert of(x509.RFC822Name("ada@example.com")) == ["Ada L", "ada@example.com"]
    assert of(subject="a\nb") == [None, None]
    assert client_name(None, SUBJECT) is None


def test_a_certificate_without_usage_is_no_nodes(authority: Authority) -> None:
    pair = authority.issue("node1", [x509.DNSName("node1")], usage=None)
    assert not is_of_node(x509.load_pem_x509_certificate(pair.certificate.read_bytes()), "node1")


def test_wildcards(authority: Authority) -> None:
    pair = authority.issue("w", [x509.DNSName("*.example.com")])
    found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert is_of_host(found, "a.example.com")
    assert not any(is_of_host(found, host) for host in ("example.com", "a.b.example.com", ".example.com", "com"))
