"""Escape text from other people (names, keys, values, errors), so that it is harmless on a terminal.

A terminal obeys control characters: they move the cursor, erase text or change the title. So text for people shows them
as escapes, `\x1b`. JSON shows them as `\u001b`, which every parser turns back.
"""

from __future__ import annotations

import re

_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Characters that json.dumps does not escape: further control characters, line separators, marks that reorder text,
lone surrogates.
"""


def printable(text: str) -> str:
    """Escape every character without a visible shape, including line feeds and tabs."""
    return text if text.isprintable() else "".join(map(_shown, text))


def lines(text: str) -> str:
    """Escape like `printable`, but keep line feeds."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def value_text(data: bytes) -> bytes:
    """Escape a message's value for a terminal: keep lines and tabs, escape everything else that is not visible text."""
    text = data.decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(c if c in "\n\t" else _shown(c) for c in text)
    return text.encode()


def in_json(text: str) -> str:
    """Escape JSON text for a terminal; in JSON, only strings can hold such characters."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
