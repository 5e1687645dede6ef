"""Tests of the certificate checks of `sandq doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from sandq.model.config import load_config
from sandq.tools.certs import Pair
from sandq.tools.doctor.check_tls import check_tls
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def found(pair: Pair | None, ca: Path | None, **more: str) -> list[tuple[str, str, str]]:
    environ = dict(more)
    if pair is not None:
        environ |= {"SANDQ_TLS__CERT_FILE": str(pair.certificate), "SANDQ_TLS__KEY_FILE": str(pair.key)}
        environ |= {"SANDQ_TLS__CA_FILE": str(ca)} if ca is not None else {"SANDQ_TLS__PEER": "off"}
    return [(check.what, check.state, check.found) for check in check_tls(load_config(None, environ))]


def test_valid_certificates_are_ok(authority: Authority) -> None:
    rows = found(authority.node("node1", days=100), authority.ca)
    assert [row[:2] for row in rows] == [("tls", "ok"), ("tls cert_file", "ok"), ("tls ca_file", "ok")]
    assert "ends in 99 days" in rows[1][2]


def test_without_tls() -> None:
    assert found(None, None) == [("tls", "ok", "no port uses it")]
    away = {"SANDQ_LISTEN__CLIENT": "0.0.0.0:7170", "SANDQ_NODE__ADVERTISE_HOST": "n1.example"}
    away |= {"SANDQ_SECURITY__INSECURE": "true"}
    ((what, state, said),) = found(None, None, **away)
    assert (what, state) == ("tls", "warning") and "others can read the data" in said


def test_certificates_that_expire_soon_or_have_expired_are_reported(authority: Authority) -> None:
    names = [x509.DNSName("node1"), x509.DNSName("localhost")]
    host = {"SANDQ_NODE__ADVERTISE_HOST": "localhost"}
    soon = found(authority.issue("soon", names, days=20.5), authority.ca, **host)
    assert soon[1][:2] == ("tls cert_file", "warning") and "ends in 20 days" in soon[1][2]
    rows = found(authority.issue("old", names, days=-2), authority.ca, **host)
    assert rows[1][:2] == ("tls cert_file", "failed") and "has ended" in rows[1][2]
    assert rows[-1][:2] == ("tls ca_file", "failed") and "certificate has expired" in rows[-1][2]


def test_certificate_of_another_node_or_authority_is_reported(authority: Authority, tmp_path: Path) -> None:
    rows = found(authority.node("node2"), authority.ca, SANDQ_NODE__ADVERTISE_HOST="n1.example")
    assert [said for what, state, said in rows if (what, state) == ("tls names", "failed")] == [
        "the certificate is not issued for n1.example, by which clients reach this node",
        "the certificate is not that of node node1: other nodes refuse it",
    ]
    other = Authority(tmp_path / "other")
    what, state, said = found(authority.node("node1"), other.ca)[-1]
    assert (what, state) == ("tls ca_file", "failed") and "unable to get local issuer" in said


def test_unusable_key_file_is_reported(authority: Authority) -> None:
    pair = authority.node("node1")
    pair.key.chmod(0o644)
    ((what, state, said),) = found(pair, authority.ca)
    assert (what, state) == ("tls", "failed") and "chmod 600" in said
