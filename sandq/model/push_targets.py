"""URLs and addresses to which the configuration of a node allows messages to be pushed.

A pattern (`*.example.com`) allows names, but only at public addresses. A network (`10.1.0.0/16`) allows addresses,
public or not. The sender resolves a name, checks each address here, and connects to an allowed address, not to the
name. So a name that resolves to a different address a moment later (DNS rebinding) has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from sandq.model.errors import InvalidRequest

Ip = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_CHARS: Final = 2048
PORTS: Final = (80, 443, 8080, 8443)
"""Ports to which messages may be pushed by default."""
LEAST_BITS: Final = {4: 8, 6: 7}
"""Minimum prefix length of a network, by IP version: a shorter prefix would allow more than an operator expects."""
_TEXT = re.compile(r"[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]")
_PATTERN = re.compile(r"[a-z0-9.*?_-]{1,253}")
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv6 prefix of IPv4 addresses behind a gateway (NAT64)."""
_ALSO_SPECIAL: Final = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("168.63.129.16/32"),
    IPv6Network("fec0::/10"),
    IPv6Network("3fff::/20"),
)
"""Networks that versions of Python classify differently (protocols, sites, documentation), and the address that looks
public but reaches the host of each virtual machine of Azure."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class TargetRefused(InvalidRequest):
    """The configuration does not allow the URL, or an address of its host."""


class Target(NamedTuple):
    """The parts of a URL. `host`: in lower case, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    """Path with the query."""

    @classmethod
    def parse(cls, url: object) -> Self:
        """Parse a URL. Raise InvalidRequest, which says what is wrong."""
        if not isinstance(url, str) or not _TEXT.fullmatch(url):
            raise InvalidRequest("url: text of printable ASCII characters without spaces is expected")
        if len(url) > URL_CHARS:
            raise InvalidRequest(f"url: {len(url)} characters, {URL_CHARS} are allowed")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"url: {error}") from None
        netloc, scheme = parts.netloc, parts.scheme.lower()
        if scheme not in _DEFAULT_PORTS:
            raise InvalidRequest(f"url: it begins with https:// or http://, not {url[:20]!r}")
        if "@" in netloc:
            raise InvalidRequest("url: it has a user or a password in it; the signature says who sends")
        if "#" in url:
            raise InvalidRequest("url: a fragment (#...) is never sent; leave it out")
        host = netloc if netloc.endswith("]") else netloc.rpartition(":")[0] or netloc
        if not _HOST.fullmatch(host):
            raise InvalidRequest(f"url: {host[:80]!r} is no host; a name with other letters is written as xn--...")
        if port == 0:
            raise InvalidRequest("url: port 0 cannot be connected to")
        host = host.strip("[]").lower().removesuffix(".")
        if not all(host.split(".")):
            raise InvalidRequest(f"url: {netloc[:80]!r} is no host: there is nothing before a dot of it")
        path = parts.path or "/"
        return cls(scheme, host, port or _DEFAULT_PORTS[scheme], f"{path}?{parts.query}" if parts.query else path)

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def shown_url(url: str) -> str:
    """Return a URL for output and logs, without the values in its query, because one of them may be a credential."""
    path, has_query, query = url.partition("?")
    if not has_query:
        return url
    parts = [part.partition("=") for part in query.split("&")]
    return f"{path}?{'&'.join([f'{name}{equals}…' if equals else '…' for name, equals, _ in parts])}"


class PushRules(NamedTuple):
    """The rules of a node."""

    patterns: tuple[str, ...] = ("*",)
    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = frozenset(PORTS)
    """Ports to which messages may be pushed. Empty: all ports."""
    allows_http: bool = False

    @classmethod
    def of(cls, allowed: Iterable[str], ports: Iterable[int], allows_http: bool) -> Self:
        """Parse the lists of the configuration. Raise InvalidRequest if an entry is neither a pattern nor a network."""
        entries = [entry_of(text) for text in allowed]
        patterns = tuple([entry for entry in entries if isinstance(entry, str)])
        networks = tuple([entry for entry in entries if not isinstance(entry, str)])
        return cls(patterns, networks, frozenset(ports), allows_http)

    def check(self, target: Target) -> None:
        """Raise TargetRefused if pushes to this URL are not allowed. This does not resolve its name."""
        if not self.patterns and not self.networks:
            raise TargetRefused("push.allow of the node is empty: nothing is pushed")
        if target.scheme == "http" and not self.allows_http:
            raise TargetRefused("url: https:// is expected; http:// needs push.allow_http: true of every node")
        if self.ports and target.port not in self.ports:
            ports = ", ".join(map(str, sorted(self.ports)))
            raise TargetRefused(f"url: port {target.port} is none of push.ports of the node ({ports})")
        address = _literal(target.host)
        if address is not None:
            self.check_address(target.host, address)
        elif not self.networks and not self._is_named(target.host):
            raise TargetRefused(f"url: {target.host} is not among push.allow of the node")

    def check_address(self, host: str, address: Ip) -> None:
        """Raise TargetRefused if pushes to `host` at this address are not allowed."""
        shown = str(address)
        address = embedded(address)
        if any(address.version == network.version and address in network for network in self.networks):
            return
        if not self._is_named(host):
            raise TargetRefused(f"{host} is not among push.allow of this node")
        if not is_public(address):
            at = "" if shown == host else f" is at {shown}, which"
            raise TargetRefused(
                f"{host}{at} is no public address: it must be in a network that push.allow of this node names"
            )

    def _is_named(self, host: str) -> bool:
        """Return whether a host matches one of the allowed patterns."""
        return any(fnmatchcase(host, pattern) for pattern in self.patterns)


def entry_of(text: str) -> str | Network:
    """Parse an entry of `push.allow`: return a network, or the pattern of a name. Raise InvalidRequest."""
    entry = text.lower()
    try:
        network = ip_network(entry)
    except ValueError as error:
        if "/" in entry or _literal(entry) is not None:
            raise InvalidRequest(f"{text!r:.60}: {error}") from None
        if not _PATTERN.fullmatch(entry):
            raise InvalidRequest(
                f'{text!r:.60} is neither a pattern of names ("*.example.com") nor a network ("10.1.0.0/16")'
            ) from None
        return entry
    least = LEAST_BITS[network.version]
    if network.prefixlen < least:
        raise InvalidRequest(f'{text}: a network of /{least} or narrower is expected; for all public addresses say "*"')
    return network


def is_public(address: Ip) -> bool:
    """Return whether an address is public: not private, not of this machine or link, no multicast."""
    if any(address.version == network.version and address in network for network in _ALSO_SPECIAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def embedded(address: Ip) -> Ip:
    """Return the IPv4 address that an IPv6 address embeds; other addresses are returned unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _literal(host: str) -> Ip | None:
    """Return the address that a host is; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
