"""The source of a request, for limits that are shared between clients by their address."""

from __future__ import annotations

import ipaddress
from typing import Final

from sandq.model.caller import Caller, host_of

IPV6_SOURCE_BITS: Final = 64
"""Prefix length of a source: an IPv6 host usually controls a whole network of this size."""


def source_of(host: str) -> str:
    """Return the source of an address: the IPv4 address, or the IPv6 network. Other text is returned unchanged."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_SOURCE_BITS), strict=False))


def source_of_caller(caller: Caller) -> str:
    """Return the source of a caller's address."""
    return source_of(host_of(caller))
