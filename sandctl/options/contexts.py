"""Contexts: named clusters, each with its servers, TLS files and token, in a file of the user.

The file is `sandq/contexts.json` in XDG_CONFIG_HOME (`~/.config`). Only its owner may read it: it may hold tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from sandctl.options.login import config_directory, read_private, write_private

CONTEXT_VARIABLE = "SANDCTL_CONTEXT"
FILES = ("ca", "cert", "key")


@dataclass(frozen=True)
class Context:
    """Settings by which a command reaches a cluster."""

    servers: tuple[str, ...]
    tls: bool | None = None
    """True to use TLS, False not to. None: use TLS if `files` names a file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Absolute paths, by the names of `FILES`."""
    token: str | None = field(default=None, repr=False)

    def shown(self) -> dict[str, Any]:
        """Return the settings that may be printed. They show whether there is a token, but never its text."""
        speaks_tls = bool(self.files) if self.tls is None else self.tls
        files = {name: self.files.get(name) for name in FILES}
        return {"servers": list(self.servers), "tls": speaks_tls, **files, "token": self.token is not None}


@dataclass(frozen=True)
class Contexts:
    """All contexts of a user, and the name of the current one."""

    current: str | None = None
    named: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return a context. Raises UsageError if no context has this name."""
        if name not in self.named:
            there = f"there are {', '.join(self.named)}" if self.named else "sandctl context add makes one"
            raise click.UsageError(f"there is no context {name!r}: {there}")
        return self.named[name]


def contexts_file() -> Path:
    """Return the path of the contexts file."""
    return config_directory() / "contexts.json"


def read_contexts() -> Contexts:
    """Return all contexts. Empty if there is no file. Raises UsageError if other users may read it, or if it is
    damaged."""
    file = contexts_file()
    content = read_private(file)
    if content is None:
        return Contexts()
    try:
        found = json.loads(content)
        named = {str(name): _context(one) for name, one in found["contexts"].items()}
        current = found.get("current")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise click.UsageError(f"{file} is damaged: remove it, and add the contexts again") from None
    return Contexts(current if current in named else None, named)


def _context(found: Any) -> Context:
    """Return a context of the file. Raises ValueError, KeyError or TypeError if it is damaged."""
    files, token, tls = found.get("files") or {}, found.get("token"), found.get("tls")
    texts = [*found["servers"], *files.values(), *([token] if token is not None else [])]
    if not found["servers"] or any(not isinstance(text, str) for text in texts) or tls not in (None, True, False):
        raise ValueError
    return Context(tuple(found["servers"]), tls, files, token)


def write_contexts(contexts: Contexts) -> Path:
    """Replace the saved contexts by these contexts, and return the path."""
    file = contexts_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    named = {name: asdict(one) for name, one in contexts.named.items()}
    write_private(file, json.dumps({"current": contexts.current, "contexts": named}, indent=2) + "\n")
    return file


def chosen(named: str | None) -> Context | None:
    """Return the context of `--context`, else of SANDCTL_CONTEXT, else the current context. None if there is none."""
    name = named or os.environ.get(CONTEXT_VARIABLE) or None
    contexts = read_contexts()
    if name is None:
        name = contexts.current
    return None if name is None else contexts.get(name)


def complete_contexts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`; none if they cannot be read."""
    try:
        return [name for name in read_contexts().named if name.startswith(incomplete)]
    except click.UsageError:
        return []
