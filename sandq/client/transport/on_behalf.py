"""Say for whom a client asks: a gateway has many callers, and nodes count what each of them takes.

Nodes believe it of a client that has proved itself (`Options.gateway_secret`), and are told by no other. It is said of
requests that are awaited one by one, and of batches whose messages are all of one caller; the others are the gateway's
own.
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
    """Ask on behalf of a caller inside the block. `address`: of its machine, an IPv6 address in brackets; `principal`:
    who it is, once that is known; `grants`: what it may consume, where that is not by all groups of a topic (the nodes
    look whose leases it settles). Raises InvalidRequest for what no node would take: it would end the connection, for
    all who are asked for."""
    for what, text, most in (("address", address, ADDRESS_CHARS), ("principal", principal, PRINCIPAL_CHARS)):
        if text is not None and not 0 < len(text) <= most:
            raise InvalidRequest(f"on_behalf_of: {what} has 1 to {most} characters, not {len(text)}")
    token = _asker.set(OnBehalf(principal, address, None if grants is None else tuple(grants)))
    try:
        yield
    finally:
        _asker.reset(token)


def asker() -> OnBehalf:
    """On whose behalf this task asks."""
    return _asker.get()
