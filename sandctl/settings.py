"""The common options of the running command: `settings()`."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

CONNECT_S = 5.0
REQUEST_S = 30.0
DELIVERY_S = 60.0


@dataclass(kw_only=True)
class Settings:
    """The common options, given anywhere on the command line."""

    servers: tuple[str, ...] = ()
    data: str | None = None
    """The data directory whose broker the command uses, instead of servers."""
    output: str = "table"
    token_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """Token to send. It replaces tokens of all other sources."""
    insecure: bool = False
    """True if a token may be sent to another machine without TLS."""
    timeout_s: float | None = None
    """Time limit of each request, in seconds; None: `CONNECT_S`, `REQUEST_S` and `DELIVERY_S`."""
    tls: bool | None = None
    """True to use TLS. None: use TLS if `files` names a file; otherwise the environment decides."""
    files: dict[str, str] = field(default_factory=dict)
    """Paths of certificate files, by the name of their option: ca, cert, key."""
    context: str | None = None
    """Name of the context that `--context` names."""

    @property
    def deadlines_s(self) -> tuple[float, float, float]:
        """Time limits for connecting, for a reply, and for storing a message, in seconds."""
        if self.timeout_s is None:
            return CONNECT_S, REQUEST_S, DELIVERY_S
        return (self.timeout_s,) * 3


def settings() -> Settings:
    """Return the settings of the command that is running."""
    return click.get_current_context().find_root().ensure_object(Settings)
