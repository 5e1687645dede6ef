"""The section `push` of the configuration: the URLs to which a node may push the messages of groups.

push     {allow, allow_http, ports, ca_file}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from sandq.model import schema
from sandq.model.config_types import split, text
from sandq.model.errors import InvalidRequest
from sandq.model.push_targets import PORTS, PushRules, entry_of


def _entry(value: object) -> str:
    """Return an entry of the allowed targets. Raise a mistake if it is wrong."""
    entry = text(value)
    try:
        entry_of(entry)
    except InvalidRequest as error:
        raise schema.mistake(error.message) from None
    return entry


class PushSection(schema.Section):
    """URLs to which messages may be pushed."""

    allow: Annotated[list[Annotated[str, BeforeValidator(_entry)]], BeforeValidator(split)] = Field(default=["*"])
    """Patterns of host names, which are allowed at public addresses only, and networks. Empty: nothing is pushed."""
    allow_http: bool = False
    ports: Annotated[list[Annotated[int, schema.integer(1, 65535)]], BeforeValidator(split)] = Field(
        default=list(PORTS)
    )
    """Ports to which messages may be pushed. Empty: all ports."""
    ca_file: Annotated[Path | None, BeforeValidator(text)] = None
    """Certificates of trusted authorities, which replace those of the machine."""

    def rules(self) -> PushRules:
        """Return the rules that this section describes."""
        return PushRules.of(self.allow, self.ports, self.allow_http)
