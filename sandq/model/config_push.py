"""The section `push` of the configuration: where a node may push the messages of groups to.

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
    entry = text(value)
    try:
        entry_of(entry)
    except InvalidRequest as error:
        raise schema.mistake(error.message) from None
    return entry


class PushSection(schema.Section):
    """Where messages may be pushed to."""

    allow: Annotated[list[Annotated[str, BeforeValidator(_entry)]], BeforeValidator(split)] = Field(default=["*"])
    """Patterns of names, which are allowed at public addresses, and networks; empty: nothing is pushed."""
    allow_http: bool = False
    ports: Annotated[list[Annotated[int, schema.integer(1, 65535)]], BeforeValidator(split)] = Field(
        default=list(PORTS)
    )
    """Empty: any."""
    ca_file: Annotated[Path | None, BeforeValidator(text)] = None
    """Certificates of authorities that are trusted, instead of the machine's."""

    def rules(self) -> PushRules:
        """What this allows."""
        return PushRules.of(self.allow, self.ports, self.allow_http)
