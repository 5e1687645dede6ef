"""Patterns of topic names, like a shell's patterns of file names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from sandq.model.errors import InvalidName
from sandq.model.limits import FIXED

PATTERNS_MAX: Final = 20
"""Maximum number of patterns that are given together."""
RULE: Final = "a pattern has 1 to 249 letters, digits, '.', '_', '-', and '*', '?', '[a-z]', '[!a-z]' for others"
_PATTERN: Final = re.compile(rf"[A-Za-z0-9._*?\[\]!-]{{1,{FIXED.name_chars}}}")


class TopicPattern:
    """Topics whose names match one of these patterns: `*` stands for any characters, `?` for one, `[ab]` for one of
    them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns. Raise InvalidName if one is not allowed."""
        self.patterns = tuple(patterns)
        problem = problem_of(self.patterns)
        if problem is not None:
            raise InvalidName(f"patterns of topics: {problem}", what="pattern")
        self._expression = re.compile("|".join([translate(pattern) for pattern in self.patterns]))

    def matches(self, name: str) -> bool:
        """Return whether the name of a topic matches one of the patterns."""
        return self._expression.match(name) is not None

    def __str__(self) -> str:
        return ", ".join(self.patterns)

    def __repr__(self) -> str:
        return f"pattern({', '.join(map(repr, self.patterns))})"


def problem_of(patterns: Sequence[object]) -> str | None:
    """Return what is wrong with patterns; None if nothing is."""
    if not 1 <= len(patterns) <= PATTERNS_MAX:
        return f"1..{PATTERNS_MAX} are allowed, not {len(patterns)}"
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            return f"{repr(pattern)[:80]} is none; the rule: {RULE}"
    return None
