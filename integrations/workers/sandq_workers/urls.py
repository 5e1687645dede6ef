"""URLs of a cluster: `sandq://[TOKEN@]HOST[:PORT][,HOST[:PORT]...][/PREFIX][?OPTION=VALUE&...]`.

`PREFIX` is put before the names of all topics, so that several applications can share a cluster. The options are those
of `OPTIONS`. `urllib` does not accept several hosts, so this module reads the URL by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import sandq
from sandq.errors import InvalidRequest
from sandq.sync import Client, connect

SCHEME: Final = "sandq://"
OPTIONS: Final = ("tls", "insecure", "ca", "cert", "key", "timeout", "delivery_timeout")
"""Options of a URL. The first two are true or false."""
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
DELIVERY_TIMEOUT: Final = "15s"
"""How long a message that is sent is retried while no node accepts it, unless the URL says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A cluster, and how to connect to it. Equal addresses share a client."""

    servers: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    prefix: str = ""
    """Prefix of the names of topics; empty, or it ends with a dot."""
    options: tuple[tuple[str, str | bool], ...] = ()
    """Arguments of `sandq.sync.connect`, sorted by name."""

    def connect(self, name: str) -> Client:
        """Connect to the cluster. Raises ConnectionLost if no server replies."""
        return connect(*self.servers, name=name, token=self.token, **self._arguments())

    def open(self, name: str) -> AbstractAsyncContextManager[sandq.Client]:
        """Connect to the cluster from an event loop: `async with address.open(name) as client:`. The same errors."""
        return sandq.connect(*self.servers, name=name, token=self.token, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        return {"delivery_timeout": DELIVERY_TIMEOUT, **dict(self.options)}


def parse(url: str, more: Mapping[str, str | bool | None] | None = None) -> Address:
    """Return the address in a URL. `more`: options in addition to those of the URL; None is left out.

    Raises InvalidRequest if the URL is wrong, or has an option that does not exist.
    """
    if not url.startswith(SCHEME):
        raise InvalidRequest(f"{masked(url)!r}: a URL that begins with {SCHEME} is expected")
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    place, _, path = rest.partition("/")
    user, _, hosts = place.rpartition("@")
    prefix = unquote(path).strip("/")
    options: dict[str, str | bool] = {name: value for name, value in (more or {}).items() if value is not None}
    for name, value in parse_qsl(query, keep_blank_values=True):
        options[name] = _option(name, value)
    return Address(
        servers=tuple(host for host in hosts.split(",") if host),
        token=unquote(user.removeprefix(":")) or None,
        prefix=f"{prefix}." if prefix else "",
        options=tuple(sorted(options.items())),
    )


def _option(name: str, value: str) -> str | bool:
    if name not in OPTIONS:
        raise InvalidRequest(f"the URL has the unknown option {name!r}; the options are {', '.join(OPTIONS)}")
    if name not in OPTIONS[:2]:
        return value
    if value.lower() not in _FLAGS:
        raise InvalidRequest(f"{name}={value}: true or false is expected in the URL")
    return _FLAGS[value.lower()]


def masked(url: str, mask: str = "**") -> str:
    """Return the URL with `mask` in place of the token."""
    place, slash, rest = url.removeprefix(SCHEME).partition("/")
    user, at, hosts = place.rpartition("@")
    return f"{SCHEME if url.startswith(SCHEME) else ''}{mask if user else ''}{at}{hosts}{slash}{rest}"
