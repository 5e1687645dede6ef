"""What others wrote (names, keys, values, errors), made harmless for a terminal.

A terminal takes control characters for orders: to move, to erase, to change its title. So whatever is printed for
people shows them as escapes, `\\x1b`; in JSON they are `\\u001b`, which every reader turns back.
"""

from __future__ import annotations

import re

_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""What json.dumps leaves as it is: further controls, line separators, marks that reorder text, halves of a pair."""


def one_line(text: str) -> str:
    """Every character that has no shape of its own, line feeds and tabs too, as an escape."""
    return text if text.isprintable() else "".join(map(_shown, text))


def lines(text: str) -> str:
    """As `one_line`, but lines stay lines."""
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))


def value_text(data: bytes) -> bytes:
    """A message's value for a terminal: lines and tabs stay, all else that is no visible text is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(c if c in "\n\t" else _shown(c) for c in text)
    return text.encode()


def in_json(text: str) -> str:
    """JSON text with escapes for what a terminal might obey; within JSON only strings can hold it."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
