"""Name the caller for whom a request is made: a gateway serves many callers, and nodes apply quotas to each of them.

A node accepts this only from a client that has proved to be a gateway (`Options.gateway_secret`); the client names
callers only to such nodes. A caller can be named for single requests, and for batches whose messages all have the same
caller. All other requests count as the gateway's own.
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
    once it is known. `grants`: the caller's rights, if it may not consume all groups of a topic. The nodes then check
    that the caller may consume the groups of the leases that it settles.

    Raises InvalidRequest for values that a node would reject, because the node would close the connection that all
    callers share.
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
