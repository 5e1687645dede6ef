"""The one rule for names (of topics, groups, nodes, clusters), and the names of the kinds of topics."""

from __future__ import annotations

import re

from sandq.model.errors import InvalidName
from sandq.model.limits import FIXED

MAX_NAME_CHARS = FIXED.name_chars
RULE = f"1 to {MAX_NAME_CHARS} of A-Z a-z 0-9 . _ - and the first one a letter or a digit"

TIMER, COMPACTED = "timer", "compacted"
"""Kinds of topics."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
_SHOWN_CHARS = 80


def check_name(what: str, name: object) -> str:
    """`name` itself when it keeps the rule; else InvalidName, with the rule. `what` it names: "topic"."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InvalidName(f"{what} name must be a string, not {kind}; the rule: {RULE}", what=what)
    start = name[:_SHOWN_CHARS]
    shown = repr(name) if start == name else f"{start!r}... ({len(name)} characters)"
    raise InvalidName(f"{what} name {shown} is not allowed; the rule: {RULE}", what=what, name=start)
