"""State the caller that a request is made for: a gateway serves many callers, and nodes apply quotas to each of them.

A node accepts this only from a client that has proved that it is a gateway (`Options.gateway_secret`); the client sends
it to no other node. It applies to single requests, and to batches whose messages all have the same caller. Everything
else counts as the gateway's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sandq.model.errors import InvalidRequest
from sandq.protocol.requests import ADDRESS_CHARS, PRINCIPAL_CHARS, OnBehalf

OURSELVES: Final = OnBehalf(None, None)
_asker: Final = ContextVar("asker", default=OURSELVES)


@contextmanager
def on_behalf_of(address: str, principal: str | None = None, grants: Sequence[str] | None = None) -> Iterator[None]:
    """Make the requests inside this block on behalf of a caller.

    `address`: the address of the caller's machine, an IPv6 address in brackets. `principal`: the caller's identity,
    once it is known. `grants`: what the caller may consume if that is less than all groups of a topic; the nodes then
    check whose leases the caller settles.

    Raises InvalidRequest for values that a node would reject: the node would close the connection, which all callers
    share.
    """
    for field, text, most in (("address", address, ADDRESS_CHARS), ("principal", principal, PRINCIPAL_CHARS)):
        if text is not None and not 0 < len(text) <= most:
            raise InvalidRequest(f"on_behalf_of: {field} has 1 to {most} characters, not {len(text)}")
    token = _asker.set(OnBehalf(principal, address, None if grants is None else tuple(grants)))
    try:
        yield
    finally:
        _asker.reset(token)


def asker() -> OnBehalf:
    """Return the caller that this task acts for."""
    return _asker.get()
