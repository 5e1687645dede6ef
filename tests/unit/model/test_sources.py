"""Tests of the source of a connection: an IPv4 address or an IPv6 network of 64 bits."""

from __future__ import annotations

import pytest

from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.sources import source_of, source_of_caller


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("", ""),
        ("no address", "no address"),
        ("no:address", "no:address"),
    ],
)
def test_source_of_returns_address_or_ipv6_network(host: str, source: str) -> None:
    assert source_of(host) == source


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:4711", "192.0.2.1"),
        ("[2001:db8::9]:4711", "2001:db8::/64"),
        ("[2001:db8::9]", "2001:db8::/64"),
        ("local", "local"),
    ],
)
def test_a_caller_counts_as_where_it_comes_from(address: str, source: str) -> None:
    assert source_of_caller(Caller(ANONYMOUS, address)) == source
