"""Types of values that several sections of the configuration use: addresses, paths, texts."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import BeforeValidator, PlainValidator

from sandq.model import schema
from sandq.model.ports import UNIX

_ADDRESS = re.compile(r"(?:\[([0-9A-Za-z:.%]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})")
_ORIGIN = re.compile(r"https?://[^/\s]+")


class Address(NamedTuple):
    """A host (name or IP address, without brackets) and a TCP or UDP port.

    A host that begins with "unix:" is the path of a Unix socket (`ports.UNIX`)."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.host.startswith(UNIX):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "host:port" or "[IPv6]:port". Raise pydantic's custom error for anything else."""
        if isinstance(text, cls):
            return text
        match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[3]) > 65535:
            raise schema.mistake(f'{text!r:.60} is not an address: "host:port" or "[IPv6]:port" is expected')
        return cls(match[1] or match[2], int(match[3]))


def _some_port(address: Address) -> Address:
    """Return an address. Raise a mistake if its port is 0."""
    if address.port == 0:
        raise schema.mistake(f"{address} has no port to connect to")
    return address


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback IP address, possibly an IPv4 address mapped into IPv6. Return False for a
    name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def split(value: object) -> object:
    """Split a list that is written as text with commas, as in an environment variable. Return other values
    unchanged."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def text(value: object) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise schema.mistake(f"text is expected, not {value!r:.60}")
    return value


def origin(value: object) -> str:
    """Return the origin of a web page, in lower case."""
    if not isinstance(value, str) or not _ORIGIN.fullmatch(value):
        raise schema.mistake(f'{value!r:.60} is not an origin: "https://console.example.com" is expected')
    return value.lower()


ListenAddress = Annotated[Address, PlainValidator(Address.parse)]
ListenAddressOrNone = Annotated[
    Address | None, PlainValidator(lambda value: None if value in (None, "none") else Address.parse(value))
]
PeerAddress = Annotated[Address, PlainValidator(lambda value: _some_port(Address.parse(value)))]
FilePath = Annotated[Path, BeforeValidator(text)]
