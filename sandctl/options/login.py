"""The token by which sandctl authenticates: from an option, the environment, or the login file.

The login file is `sandq/login.json` in XDG_CONFIG_HOME (`~/.config`): an object with a token for each server. Only its
owner may read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

TOKEN_VARIABLE = "SANDCTL_TOKEN"
FILE_BYTES = 1 << 20
OTHERS = 0o077
"""Mode bits that give access to users other than the owner."""


def config_directory() -> Path:
    """Return the directory of sandctl's files of this user."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "sandq"


def login_file() -> Path:
    """Return the path of the login file."""
    return config_directory() / "login.json"


def credentials(token: str | None, token_file: str | None, insecure: bool, servers: tuple[str, ...]) -> dict[str, Any]:
    """Return the TLS options of a client. Raises UsageError if a named file cannot be read."""
    found: dict[str, Any] = {"insecure": True} if insecure else {}
    token = token or token_of(token_file, servers)
    return found | ({"token": token} if token is not None else {})


def token_of(token_file: str | None, servers: tuple[str, ...]) -> str | None:
    """Return the token for these servers; None if there is none."""
    if token_file is not None:
        return read_token(token_file)
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if given:
        return _checked(given, TOKEN_VARIABLE)
    logins = read_logins()
    return next((logins[server] for server in servers if server in logins), None)


def read_token(file: str) -> str:
    """Return the token in a file; `-` means standard input."""
    try:
        if file == "-":
            text = sys.stdin.read(FILE_BYTES)
        else:
            with open(file, encoding="utf-8") as opened:
                text = opened.read(FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    return _checked(text.strip(), f"--token-file {file}")


def _checked(token: str, where: str) -> str:
    """Return a token. Errors never show its text."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise click.UsageError(f"{where}: not a valid token")
    return token


def read_logins() -> dict[str, str]:
    """Return tokens by server. Empty without a file. Raises UsageError if other users may read it, or if it is
    damaged."""
    file = login_file()
    content = read_private(file)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(token, str) for token in found.values()):
        raise click.UsageError(f"{file} is damaged: remove it, and log in again")
    return found


def read_private(file: Path) -> bytes | None:
    """Return the content of a file that only its owner may read. None if there is no such file.

    Raises UsageError if the file cannot be read, or if other users may read it."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    if mode & OTHERS:
        raise click.UsageError(f"{file} can be read by others than its owner: chmod 600 {file}")
    return content


def write_logins(logins: dict[str, str]) -> Path:
    """Replace the saved tokens by these tokens, and return the path."""
    file = login_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(file, json.dumps(logins, indent=2) + "\n")
    return file


def write_private(file: Path, text: str) -> None:
    """Write a text to a file that only its owner may read. The file is never half-written."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
