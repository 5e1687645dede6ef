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
    output: str = "table"
    token_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """Token to send, in place of any other source of a token."""
    insecure: bool = False
    """Whether a token may be sent to another machine in the clear."""
    timeout_s: float | None = None
    """Time limit of each request, in seconds; None: `CONNECT_S`, `REQUEST_S` and `DELIVERY_S`."""
    tls: bool | None = None
    """Use TLS. None: use it if `files` names one, or as the environment says."""
    files: dict[str, str] = field(default_factory=dict)
    """Paths of certificate files, by the name of their option: ca, cert, key."""
    context: str | None = None
    """Name of the context that was asked for by `--context`."""

    @property
    def deadlines_s(self) -> tuple[float, float, float]:
        """Time limits for connecting, for a reply, and for storing a message, in seconds."""
        if self.timeout_s is None:
            return CONNECT_S, REQUEST_S, DELIVERY_S
        return (self.timeout_s,) * 3


def settings() -> Settings:
    """Return the settings of the command that is running."""
    return click.get_current_context().find_root().ensure_object(Settings)
