"""Credentials of a query for the cluster: a token, or a file with one on every executor, and the settings of TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandq.model.errors import InvalidRequest
from sandq.model.principals import TOKEN_CHARS
from sandq.spark.option_texts import OptionTexts, truth

TOKEN: Final = "token"
TOKEN_FILE: Final = "token_file"
INSECURE: Final = "insecure"
TLS: Final = ("tls", "ca", "cert", "key")
OPTIONS: Final = (TOKEN, TOKEN_FILE, INSECURE, *TLS)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials from the options.

    If neither `token` nor `token_file` is set, the client uses the environment (`SANDQ_TOKEN`, `SANDQ_TOKEN_FILE`).
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    insecure: bool = False
    tls: bool | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    """Path of a PEM file, like `ca` and `cert`; the processes that connect read them.

    Settings of TLS that are None come from the environment (`SANDQ_CA` and its like).
    """

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `connect`."""
        token: Any = self.token if self.token_file is None else self._read
        values = {"token": token, "insecure": self.insecure or None}
        values |= {name: getattr(self, name) for name in TLS}
        return {name: value for name, value in values.items() if value is not None}

    def _read(self) -> str:
        """Read the token from its file; called for each new connection. Raises InvalidRequest."""
        try:
            return Path(str(self.token_file)).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise InvalidRequest(f"{TOKEN_FILE} {self.token_file}: {reason}") from None


NO_CREDENTIALS: Final = Credentials()


def credentials_of(texts: OptionTexts) -> Credentials:
    """Parse the credentials; mistakes are added to `texts.mistakes`."""
    found = Credentials(
        texts.value(TOKEN, _token, None),
        texts.value(TOKEN_FILE, _file, None),
        texts.value(INSECURE, truth, False),
        texts.value(TLS[0], truth, None),
        *(texts.value(name, _file, None) for name in TLS[1:]),
    )
    if found.token is not None and found.token_file is not None:
        texts.mistakes.append(f"{TOKEN} and {TOKEN_FILE}: one of them is enough")
    return found


def _token(text: str) -> str:
    """Check a token. The error never contains the token."""
    if not 0 < len(text) <= TOKEN_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest(f"1 to {TOKEN_CHARS} visible ASCII characters are expected")
    return text


def _file(text: str) -> str:
    if not text:
        raise InvalidRequest("a path is expected")
    return text
