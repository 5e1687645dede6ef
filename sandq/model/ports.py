"""Default addresses of a node, which clients use as well."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final

from sandq.model.errors import InvalidRequest

LOCAL_HOST: Final = "127.0.0.1"
CLIENT_PORT: Final = 7170
HTTP_PORT: Final = 2108
PEER_PORT: Final = 9190
GOSSIP_PORT: Final = 9900
SQL_PORT: Final = 3306
"""Default port of MySQL, to which clients of MySQL connect by default."""

DEFAULT_SERVER: Final = f"{LOCAL_HOST}:{CLIENT_PORT}"

UNIX: Final = "unix:"
"""Prefix of a host that is the path of a Unix socket. Such an address has port 0."""
LOCAL_CALLER: Final = "local"
"""Address of a caller that is connected by a Unix socket, or is the node itself."""


def socket_path(host: str) -> str | None:
    """Return the path of the Unix socket that a host names; None if it names none."""
    return host.removeprefix(UNIX) if host.startswith(UNIX) else None


def parse_server(text: str) -> tuple[str, int]:
    """Return `(host, port)` of "host", "host:port" or "[::1]:port". Raise InvalidRequest otherwise.

    "unix:PATH" is a host, and its port is 0."""
    if not isinstance(text, str):
        raise InvalidRequest(f'a server is text like "{DEFAULT_SERVER}", not {type(text).__name__}')
    if text.startswith(UNIX) and len(text) > len(UNIX) and "\0" not in text:
        return text, 0
    if "://" in text:
        raise InvalidRequest(
            f"{text!r:.200} is a URL, and a server is HOST:PORT of a node's client port, like {DEFAULT_SERVER!r}; "
            "HTTP is served at another port"
        )
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]") or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, str(CLIENT_PORT)
    is_v6 = ":" in host
    host = host.removeprefix("[").removesuffix("]")
    if (
        not host
        or (is_v6 and not _is_ipv6(host))
        or any(char in host for char in "/@ \t\n")
        or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)
    ):
        raise InvalidRequest(f"{text!r} is not a server: HOST:PORT is expected")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    """Return whether a host is an IPv6 address."""
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
