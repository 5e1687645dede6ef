"""The section `tls` of the configuration: which ports speak TLS, and with which certificates.

tls     {cert_file, key_file, ca_file, crl_file, client, http, sql, peer, client_certificates, client_name}

The mode of a port defaults to `require` if there is a certificate, else to `off`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from sandq.model import schema
from sandq.model.config_types import text

OFF: Final = "off"
ACCEPT: Final = "accept"
SEND: Final = "send"
REQUIRE: Final = "require"
SUBJECT: Final = "subject"
SAN: Final = "san"

PORT_MODES: Final = (OFF, ACCEPT, REQUIRE)
PEER_MODES: Final = (OFF, ACCEPT, SEND, REQUIRE)
NAMES: Final = (SUBJECT, SAN)


def check_choice(value: object, *words: str) -> str:
    """Return `value` if it is one of these words. YAML reads a bare `off` as false, so false is accepted as `off`."""
    word = OFF if value is False and OFF in words else value
    if not isinstance(word, str) or word not in words:
        shown = "true" if value is True else value
        raise schema.mistake(f"{shown!r:.60} is none of {', '.join(words)}")
    return word


def _mode(words: tuple[str, ...], value: object, info: ValidationInfo) -> str:
    """Return the mode of a port. The default depends on whether the node has a certificate."""
    if value is None:
        return OFF if info.data.get("cert_file") is None else REQUIRE
    return check_choice(value, *words)


def _of_port(value: object, info: ValidationInfo) -> str:
    """Return the mode of a port for clients."""
    return _mode(PORT_MODES, value, info)


def _of_peers(value: object, info: ValidationInfo) -> str:
    """Return the mode of the port for nodes."""
    return _mode(PEER_MODES, value, info)


class TlsSection(schema.Section):
    """TLS on the ports of a node."""

    cert_file: Annotated[Path | None, BeforeValidator(text)] = None
    """The node's certificate, followed by the intermediate certificates up to its authority; PEM."""
    key_file: Annotated[Path | None, BeforeValidator(text)] = Field(default=None, validate_default=False)
    ca_file: Annotated[Path | None, BeforeValidator(text)] = None
    """Authorities of the certificates of nodes and clients; PEM."""
    crl_file: Annotated[Path | None, BeforeValidator(text)] = None
    """Revocation lists of these authorities; PEM."""
    client: Annotated[str, BeforeValidator(_of_port)] = Field(default=None, validate_default=True)
    http: Annotated[str, BeforeValidator(_of_port)] = Field(default=None, validate_default=True)
    sql: Annotated[str, BeforeValidator(_of_port)] = Field(default=None, validate_default=True)
    peer: Annotated[str, BeforeValidator(_of_peers)] = Field(default=None, validate_default=True)
    client_certificates: Annotated[str, BeforeValidator(lambda value: check_choice(value, *PORT_MODES))] = Field(
        default=OFF, validate_default=True
    )
    """Whether clients are asked for certificates of the authorities in `ca_file`."""
    client_name: Annotated[str, BeforeValidator(lambda value: check_choice(value, *NAMES))] = SUBJECT
    """Part of a client's certificate that is its name."""

    @field_validator("key_file")
    @classmethod
    def _key_of_a_certificate(cls, key_file: Path | None, info: ValidationInfo) -> Path | None:
        """Check that a key is given only with a certificate."""
        if key_file is not None and info.data.get("cert_file") is None:
            raise schema.mistake("is the key of no certificate: say cert_file, too")
        return key_file

    @field_validator("crl_file")
    @classmethod
    def _lists_of_authorities(cls, crl_file: Path | None, info: ValidationInfo) -> Path | None:
        """Check that revocation lists are given only with an authority."""
        if crl_file is not None and info.data.get("ca_file") is None:
            raise schema.mistake("is a list of no authority: say ca_file, too")
        return crl_file

    @field_validator("client", "http", "sql", "peer")
    @classmethod
    def _has_a_certificate(cls, mode: str, info: ValidationInfo) -> str:
        """Check that the node has a certificate for TLS, and an authority for TLS between nodes."""
        data: dict[str, Any] = info.data
        if mode == OFF or "cert_file" not in data or "key_file" not in data:
            return mode
        missing = [name for name in ("cert_file", "key_file") if data[name] is None]
        if missing:
            raise schema.mistake(
                f"{mode} needs {' and '.join(missing)}, the certificate of this node; to make one: sandq certs node"
            )
        if info.field_name == "peer" and "ca_file" in data and data["ca_file"] is None:
            raise schema.mistake(
                f"{mode} needs ca_file, the authority of the certificates of all nodes; without TLS between nodes: off"
            )
        return mode

    @field_validator("client_certificates")
    @classmethod
    def _has_an_authority(cls, mode: str, info: ValidationInfo) -> str:
        """Check that certificates of clients can be checked: with an authority, and on a port with TLS."""
        data = info.data
        if mode == OFF:
            return mode
        if "ca_file" in data and data["ca_file"] is None:
            raise schema.mistake(f"{mode} needs ca_file, the authority of the certificates of clients")
        if data.get("client") == data.get("http") == OFF:
            raise schema.mistake(f"{mode} needs TLS: clients show certificates in its handshake alone")
        return mode

    @property
    def is_on(self) -> bool:
        """Whether any port speaks TLS."""
        return (self.client, self.http, self.peer) != (OFF, OFF, OFF)
