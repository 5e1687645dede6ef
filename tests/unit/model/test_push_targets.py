"""Tests of allowed push targets: URLs, names, and addresses of every kind."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.push_targets import PORTS, PushRules, Target, TargetRefused, embedded, entry_of, is_public, shown_url

PUBLIC = ["8.8.8.8", "2606:4700::1", "64:ff9b::808:808", "::ffff:8.8.8.8", "172.15.0.1", "172.32.0.1"]
SPECIAL = [
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "192.0.0.8", "198.18.0.1", "192.0.2.1", "::1", "::",
    "fe80::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "2002:a00:1::", "2002:7f00:1::", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "::10.0.0.1",
    "168.63.129.16", "::ffff:168.63.129.16", "3fff::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(embedded(ip_address(address)))
    PushRules().check_address("example.com", ip_address(address))


@pytest.mark.parametrize("address", SPECIAL)
def test_special_address_is_refused_for_any_name(address: str) -> None:
    assert not is_public(embedded(ip_address(address)))
    with pytest.raises(TargetRefused, match=r"no public address.*push\.allow"):
        PushRules().check_address("example.com", ip_address(address))


@pytest.mark.parametrize(
    ("allow", "host", "address", "is_allowed"),
    [
        (["10.1.0.0/16"], "inside.corp", "10.1.2.3", True),
        (["10.1.0.0/16"], "inside.corp", "10.2.2.3", False),
        (["10.1.0.0/16"], "inside.corp", "::ffff:10.1.2.3", True),
        (["10.1.0.0/16"], "example.com", "8.8.8.8", False),
        (["*", "10.1.0.0/16"], "example.com", "8.8.8.8", True),
        (["*", "10.1.0.0/16"], "inside.corp", "10.1.2.3", True),
        (["*.example.com"], "hooks.example.com", "8.8.8.8", True),
        (["*.example.com"], "hooks.example.com", "10.0.0.1", False),
        (["*.example.com"], "example.com.evil.org", "8.8.8.8", False),
        (["*.example.com"], "notexample.com", "8.8.8.8", False),
        (["127.0.0.1"], "localhost", "127.0.0.1", True),
        (["127.0.0.1"], "localhost", "127.0.0.2", False),
        (["fd00::/8"], "inside.corp", "fd12::1", True),
        (["169.254.169.254"], "metadata", "169.254.169.254", True),
        ([], "example.com", "8.8.8.8", False),
    ],
)
def test_addresses_by_list(allow: list[str], host: str, address: str, is_allowed: bool) -> None:
    rules = PushRules.of(allow, PORTS, False)
    if is_allowed:
        rules.check_address(host, ip_address(address))
    else:
        with pytest.raises(TargetRefused):
            rules.check_address(host, ip_address(address))


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://Example.com", ("https", "example.com", 443, "/"), "example.com"),
        ("https://example.com./a/b?c=d&e", ("https", "example.com", 443, "/a/b?c=d&e"), "example.com"),
        ("http://example.com:8080/", ("http", "example.com", 8080, "/"), "example.com:8080"),
        ("https://[2606:4700::1]:8443/x", ("https", "2606:4700::1", 8443, "/x"), "[2606:4700::1]:8443"),
        ("https://example.com:443?q", ("https", "example.com", 443, "/?q"), "example.com"),
        ("HTTPS://8.8.8.8/", ("https", "8.8.8.8", 443, "/"), "8.8.8.8"),
    ],
)
def test_a_url_is_taken_apart(url: str, target: tuple[object, ...], authority: str) -> None:
    assert Target.parse(url) == target
    assert Target.parse(url).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "https://",
        "https:///x",
        "https://./",
        "https://../",
        "https://.example.com/",
        "https://a..b/",
        "https://example.com../",
        "https://user:pass@example.com/",
        "https://example.com/#there",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://exa mple.com/",
        "https://exämple.com/",
        "https://example.com/\r\nx-evil: 1",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://" + "a" * 2048,
        "https://a b",
        7,
        None,
    ],
)
def test_invalid_url_is_refused(url: object) -> None:
    with pytest.raises(InvalidRequest, match="url: "):
        Target.parse(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "push.allow_http"),
        ("https://example.com:22/", "port 22"),
        ("https://127.0.0.1/", "no public address"),
        ("https://[::1]/", "no public address"),
        ("https://2130706433/", None),
        ("https://example.com/", None),
    ],
)
def test_a_url_is_checked_before_its_name_is_looked_up(url: str, why: str | None) -> None:
    if why is None:
        PushRules().check(Target.parse(url))  # the address of an unusual name is checked later
        return
    with pytest.raises(TargetRefused, match=why):
        PushRules().check(Target.parse(url))


def test_a_name_that_no_entry_has_is_refused_at_once() -> None:
    with pytest.raises(TargetRefused, match=r"example\.org is not among"):
        PushRules.of(["*.example.com"], PORTS, False).check(Target.parse("https://example.org/"))
    # The name may have an address in an allowed network. This is checked at the lookup.
    PushRules.of(["10.0.0.0/8"], PORTS, False).check(Target.parse("https://example.org/"))
    with pytest.raises(TargetRefused, match="empty"):
        PushRules.of([], PORTS, False).check(Target.parse("https://example.org/"))


def test_empty_port_list_allows_all_ports() -> None:
    PushRules.of(["*"], [], False).check(Target.parse("https://example.com:12345/"))


@pytest.mark.parametrize(
    "text", ["0.0.0.0/0", "::/0", "0.0.0.0/7", "10.0.0.1/8", "10.0.0.0/33", "https://x", "a/b", "a b"]
)
def test_invalid_entry_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        entry_of(text)


def test_a_query_is_not_shown() -> None:
    assert shown_url("https://example.com/a?token=1&b=&c&d=x=y") == "https://example.com/a?token=…&b=…&…&d=…"
    assert shown_url("https://example.com/?s3cret") == "https://example.com/?…"
    assert shown_url("https://example.com/a") == "https://example.com/a"
