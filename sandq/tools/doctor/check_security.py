"""Whether a node is open to others than its own machine."""

from __future__ import annotations

from collections.abc import Iterator

from sandq.model.config import NodeConfig
from sandq.tools.doctor.check import Check, ok, warning


def check_security(config: NodeConfig) -> Iterator[Check]:
    """Each port on which anybody may do everything, or read what is said."""
    exposed = config.exposed
    for port in exposed:
        yield warning("security", port, "turn on what is missing: docs/security.md")
    if not exposed:
        yield ok("security", "nothing is open to other machines without TLS and authentication")
