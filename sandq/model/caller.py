"""Who asks for something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends the requests of a connection; made once when it is accepted, and given to the broker with each.

    `principal`: a name for rights, quotas and audit, "anonymous" as long as nobody has to say who they are. `address`:
    where the connection comes from, "host:port". The HTTP API is a client of its own node: its requests come from that
    client's connection, all with the same anonymous caller, whose address is one of this machine.
    """

    principal: str
    address: str


def host_of(caller: Caller) -> str:
    """The machine that a connection comes from."""
    return caller.address.rpartition(":")[0] or caller.address


NODE: Final = Caller("node", "local")
"""The node itself, and what runs within it."""
