"""Who a job is to the cluster, by a token of its options or of a file that every executor has, and how it speaks."""

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
    """As the options have them; without any the environment says who it is (`SANDQ_TOKEN`, `SANDQ_TOKEN_FILE`)."""

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    insecure: bool = False
    tls: bool | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    """Files, which are read where tasks run; what is not said of TLS, the environment says (`SANDQ_CA`)."""

    def arguments(self) -> dict[str, Any]:
        """Of `connect`."""
        token: Any = self.token if self.token_file is None else self._read
        said = {"token": token, "insecure": self.insecure or None}
        said |= {name: getattr(self, name) for name in TLS}
        return {name: value for name, value in said.items() if value is not None}

    def _read(self) -> str:
        """The token, for each connection anew. Raises InvalidRequest."""
        try:
            return Path(str(self.token_file)).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise InvalidRequest(f"{TOKEN_FILE} {self.token_file}: {why}") from None


NOBODY: Final = Credentials()


def credentials_of(texts: OptionTexts) -> Credentials:
    """What options say; mistakes are gathered there."""
    found = Credentials(
        texts.one(TOKEN, _token, None),
        texts.one(TOKEN_FILE, _file, None),
        texts.one(INSECURE, truth, False),
        texts.one(TLS[0], truth, None),
        *(texts.one(name, _file, None) for name in TLS[1:]),
    )
    if found.token is not None and found.token_file is not None:
        texts.mistakes.append(f"{TOKEN} and {TOKEN_FILE}: one of them is enough")
    return found


def _token(text: str) -> str:
    """It never shows what it was."""
    if not 0 < len(text) <= TOKEN_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest(f"1 to {TOKEN_CHARS} visible ASCII characters are expected")
    return text


def _file(text: str) -> str:
    if not text:
        raise InvalidRequest("a path is expected")
    return text
