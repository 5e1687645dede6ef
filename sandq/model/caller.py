"""Who asks for something."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sandq.model.access import Access

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends the requests of a connection, made once when it is accepted, or on whose behalf a gateway sends them;
    given to the broker with each.

    `principal`: a name for rights, quotas and audit, "anonymous" as long as nobody has to say who they are. `address`:
    where the connection comes from, "host:port", or of who asks a gateway, which says the host alone. `gateway`: where
    its connection comes from, if one asks. `access`: what it may do; None: everything.
    """

    principal: str
    address: str
    gateway: str = ""
    access: Access | None = field(default=None, compare=False, repr=False)

    @property
    def line(self) -> str:
        """Of the connection that what is asked comes by: that stays in its order."""
        return self.gateway or self.address


def host_of(caller: Caller) -> str:
    """The machine that a request comes from."""
    host, _, port = caller.address.rpartition(":")
    return host if port.isdecimal() and host else caller.address


NODE: Final = Caller("node", "local")
"""The node itself, and what runs within it."""
