"""The section `backup` of the configuration: the destination of backups that are requested over HTTP.

backup   {url, key_file, identities}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from sandq.model import schema
from sandq.model.config_types import text


def _url(value: object) -> object:
    """Return a URL. Raise a mistake if it may contain a password."""
    url = text(value)
    if isinstance(url, str):
        authority = url.partition("://")[2].partition("/")[0]
        if "@" in authority or "?" in url.partition("://")[2]:
            raise schema.mistake("a password has no place in it: give what lets in by the environment, or a file")
    return url


class BackupSection(schema.Section):
    """Destination of backups that are requested over HTTP. Without a URL, none can be requested."""

    url: Annotated[str | None, BeforeValidator(_url)] = None
    """A directory, or a URL that fsspec knows; None disables backups over HTTP."""
    key_file: Annotated[Path | None, BeforeValidator(text)] = None
    """File with the key that encrypts the backups."""
    identities: bool = False
    """Whether backups include identities, roles and the hashes of tokens."""
