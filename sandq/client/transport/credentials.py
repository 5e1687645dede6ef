"""The client's token: from its arguments or from its environment."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import anyio

from sandq.client.options import Options, Token
from sandq.model.errors import InvalidRequest
from sandq.model.principals import TOKEN_CHARS

TOKEN_VARIABLE: Final = "SANDQ_TOKEN"
FILE_VARIABLE: Final = "SANDQ_TOKEN_FILE"
FILE_BYTES: Final = 16 << 10


def token_or_environment(token: Token | None) -> Token | None:
    """Return `token`, or the token that the environment configures.

    `SANDQ_TOKEN` is the token itself. `SANDQ_TOKEN_FILE` names a file that is read for each connection. Raises
    InvalidRequest.
    """
    if token is not None:
        if not callable(token):
            check_token(token)
        return token
    text, file = os.environ.get(TOKEN_VARIABLE), os.environ.get(FILE_VARIABLE)
    if text:
        return check_token(text.strip())
    return in_file(Path(file)) if file else None


def in_file(path: Path) -> Token:
    """Return a function that reads a token from a file.

    The client calls it for each connection, so that the file may be replaced while the client runs.
    """

    async def read() -> str:
        try:
            async with await anyio.open_file(path, "rb") as file:
                content = await file.read(FILE_BYTES + 1)
            return check_token(content.decode().strip())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InvalidRequest(f"token file {path}: {why}") from None

    return read


def check_token(token: object) -> str:
    """Return `token` if it is valid. Raises InvalidRequest, whose text never contains the token."""
    if not isinstance(token, str):
        raise InvalidRequest(f"token: text is expected, or a function that returns it, not {type(token).__name__}")
    if not 0 < len(token) <= TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"token: 1 to {TOKEN_CHARS} visible ASCII characters are expected")
    return token


async def token_of(token: Token | None) -> str | None:
    """Return the token for one connection. If `token` is a function, call it.

    Raises InvalidRequest, and errors of that function.
    """
    if token is None or isinstance(token, str):
        return token
    found: Any = token()
    if isinstance(found, Awaitable):
        found = await found
    return check_token(found)


def check_clear(token: str, remote: Any, options: Options, *, is_encrypted: bool = False) -> None:
    """Raise InvalidRequest if the token would be sent unencrypted to another machine.

    `remote`: the peer's address as the socket reports it.
    """
    if is_encrypted or options.insecure or isinstance(remote, str):  # a Unix socket has a path
        return
    host = remote[0] if isinstance(remote, tuple) and remote else ""
    try:
        is_here = ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        is_here = False
    if not is_here:
        raise InvalidRequest(
            f"the token is not sent to {host or 'another machine'} in the clear: connect by TLS, or in a private "
            "network use insecure=True (sandctl: --insecure)"
        )
