"""The caller of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sandq.model.access import Access
from sandq.model.ports import LOCAL_CALLER

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that sends a request, or for which a gateway sends it. The broker gets the caller with each request.

    `principal`: its name for rights, quotas and audit; "anonymous" if the client has not authenticated. `address`:
    "host:port" of its connection; behind a gateway, the host alone. `gateway`: address of the gateway's connection, if
    one is in between. `access`: its rights; None: full access.
    """

    principal: str
    address: str
    gateway: str = ""
    access: Access | None = field(default=None, compare=False, repr=False)

    @property
    def line(self) -> str:
        """Address of the connection that carries the request. Requests of one connection keep their order."""
        return self.gateway or self.address


def host_of(caller: Caller) -> str:
    """Return the host that a request comes from."""
    host, _, port = caller.address.rpartition(":")
    return host if port.isdecimal() and host else caller.address


NODE: Final = Caller("node", LOCAL_CALLER)
"""The node itself, and tasks that run within it."""
