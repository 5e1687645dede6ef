"""Tests of `sandq certs`: it issues correct certificates and does not overwrite existing files by mistake."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.oid import NameOID

from sandq.cli import main
from sandq.model.config_tls import SAN, SUBJECT, TlsSection
from sandq.model.errors import StartupError
from sandq.tls.certificates import Certificates
from sandq.tls.names import client_name, is_of_host, is_of_node


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["certs", *map(str, args)])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory with an authority, a node and a client."""
    out = tmp_path / "certs"
    assert run("ca", "--out", out).exit_code == 0
    found = run("node", "node1", "--host", "n1.example", "--host", "10.0.0.1", "--ca", out, "--out", out)
    assert found.exit_code == 0, found.output
    assert run("client", "ada", "--ca", out, "--out", out).exit_code == 0
    return out


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_keys_are_for_their_owner_alone(made: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca-key.pem", "node1-key.pem", "ada-key.pem"}
    assert set(modes) == {f"{name}{part}.pem" for name in ("ca", "node1", "ada") for part in ("", "-key")}


def test_issued_certificates_name_their_node_or_client(made: Path) -> None:
    node, client = certificate(made / "node1.pem"), certificate(made / "ada.pem")
    assert is_of_node(node, "node1") and not is_of_node(node, "node2") and not is_of_node(node, "10.0.0.1")
    for host in ("n1.example", "N1.example", "10.0.0.1", "127.0.0.1", "::1", "localhost"):
        assert is_of_host(node, host)
    assert not is_of_host(node, "10.0.0.2")
    assert client_name(client, SUBJECT) == "ada" and client_name(client, SAN) is None
    assert not is_of_node(client, "ada")  # the certificate is not valid for servers
    assert client_name(node, SAN) == "node1"


def test_printed_section_is_a_valid_configuration(made: Path, tmp_path: Path) -> None:
    printed = run("node", "node2", "--ca", made, "--out", tmp_path / "own")
    section = yaml.safe_load(printed.stdout.partition("\n")[2])["tls"]
    found = Certificates(TlsSection(**section))
    assert found.settings.client == found.settings.peer == "require"
    assert is_of_node(found.loaded.chain[0], "node2") and len(found.loaded.authorities) == 1


def test_existing_files_are_not_replaced(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    for args in (("ca",), ("node", "node1", "--ca", made), ("client", "ada", "--ca", made)):
        refused = run(*args, "--out", made)
        assert refused.exit_code == 1 and "is there already and is not replaced" in refused.stderr
    assert before == {path: path.read_bytes() for path in made.iterdir()}
    assert run("client", "ada", "--ca", made, "--out", made, "--force").exit_code == 0
    assert before[made / "ada.pem"] != (made / "ada.pem").read_bytes()


def of_node1(made: Path, lists: Path) -> TlsSection:
    files = {"cert_file": "node1.pem", "key_file": "node1-key.pem", "ca_file": "ca.pem"}
    given = {**{name: str(made / file) for name, file in files.items()}, "crl_file": str(lists)}
    return TlsSection(**given)  # type: ignore[arg-type]


def test_revoked_certificates_are_listed(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "nodes"
    assert run("revoke", "--ca", made, "--out", out).stdout == f"{out / 'crl.pem'}: 0 revoked certificates\n"
    assert run("revoke", made / "ada.pem", "--ca", made, "--out", out).stdout.endswith("1 revoked certificate\n")
    assert run("revoke", made / "ada.pem", "--ca", made, "--out", out).stdout.endswith("1 revoked certificate\n")
    assert run("revoke", made / "node1.pem", "--ca", made, "--out", out).stdout.endswith("2 revoked certificates\n")
    found = x509.load_pem_x509_crl((out / "crl.pem").read_bytes())
    authority = certificate(made / "ca.pem")
    assert found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    assert found.next_update_utc == authority.not_valid_after_utc, (
        "the list must be valid as long as the authority, because an expired list refuses every client"
    )
    serials = {certificate(made / f"{name}.pem").serial_number for name in ("ada", "node1")}
    assert {entry.serial_number for entry in found} == serials
    assert len(Certificates(of_node1(made, out / "crl.pem")).loaded.revoked) == 1


def test_invalid_revocations_are_refused(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run("ca", "--out", other).exit_code == 0 and run("client", "eve", "--ca", other, "--out", other)
    for path, why in (
        (other / "eve.pem", "was not issued by"),
        (made / "nobody.pem", "cannot be read"),
        (made / "ada-key.pem", "is not a certificate"),
    ):
        refused = run("revoke", path, "--ca", made, "--out", made)
        assert refused.exit_code == 1 and why in refused.stderr
    (made / "crl.pem").write_text("nothing")
    refused = run("revoke", "--ca", made, "--out", made)
    assert refused.exit_code == 1 and "is not a list of revoked certificates" in refused.stderr
    with pytest.raises(StartupError, match=r"crl_file .*crl.pem holds no list"):
        Certificates(of_node1(made, made / "crl.pem"))


def test_certificate_ends_no_later_than_its_authority(tmp_path: Path) -> None:
    assert run("ca", "--out", tmp_path, "--days", 2, "--name", "short").exit_code == 0
    assert run("client", "ada", "--ca", tmp_path, "--out", tmp_path).exit_code == 0
    authority, issued = certificate(tmp_path / "ca.pem"), certificate(tmp_path / "ada.pem")
    assert issued.not_valid_after_utc == authority.not_valid_after_utc
    assert issued.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "short"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("node", "n 1", "--host", "a"), "node"),
        (("node", "node9", "--host", "a:7170"), "'a:7170' is no host"),
        (("node", "ca", "--host", "a"), "cannot be the name"),
        (("client", "../x"), "cannot be the name"),
        (("client", ""), "1 to 64 printable"),
        (("client", "x" * 65), "1 to 64 printable"),
        (("client", "bob", "--days", "0"), "--days 0 is not within"),
    ],
)
def test_invalid_certificates_are_not_issued(made: Path, args: tuple[str, ...], said: str) -> None:
    before = set(os.listdir(made))
    refused = run(*args, "--ca", made, "--out", made)
    assert refused.exit_code == 1 and said in refused.stderr, refused.output
    assert set(os.listdir(made)) == before


def test_without_an_authority(made: Path, tmp_path: Path) -> None:
    missing = run("client", "bob", "--ca", tmp_path / "no", "--out", made)
    assert missing.exit_code == 1 and "To create an authority, run: sandq certs ca" in missing.stderr
    (made / "ca-key.pem").write_bytes((made / "ada-key.pem").read_bytes())
    other = run("client", "bob", "--ca", made, "--out", made)
    assert other.exit_code == 1 and "is not the key of" in other.stderr
    (made / "ca-key.pem").write_text("nothing")
    assert "in PEM" in run("client", "bob", "--ca", made, "--out", made).stderr


def test_only_the_authority_certificate_is_a_ca(made: Path, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=made / "ca.pem")
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "sandq"),),)]
