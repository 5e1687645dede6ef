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


def parse_server(text: str) -> tuple[str, int]:
    """Return `(host, port)` of "host", "host:port" or "[::1]:port". Raise InvalidRequest otherwise."""
    if not isinstance(text, str):
        raise InvalidRequest(f'a server is text like "{DEFAULT_SERVER}", not {type(text).__name__}')
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
