"""What counts as one source, wherever something is shared out by where it comes from."""

from __future__ import annotations

import ipaddress
from typing import Final

from sandq.model.caller import Caller, host_of

IPV6_SOURCE_BITS: Final = 64
"""Whoever has an IPv6 address has a whole network of these."""


def source_of(host: str) -> str:
    """What an address counts as: an IPv4 address, or an IPv6 network; other text stays as it is."""
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
    """What a caller's address counts as."""
    return source_of(host_of(caller))
