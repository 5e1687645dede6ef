"""Patterns of topics' names, as a shell has them of files'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from sandq.model.errors import InvalidName
from sandq.model.limits import FIXED

PATTERNS_MAX: Final = 20
"""That are asked for together."""
RULE: Final = "a pattern has 1 to 249 letters, digits, '.', '_', '-', and '*', '?', '[a-z]', '[!a-z]' for others"
_PATTERN: Final = re.compile(rf"[A-Za-z0-9._*?\[\]!-]{{1,{FIXED.name_chars}}}")


class TopicPattern:
    """Topics whose names are like one of these: `*` stands for any characters, `?` for one, `[ab]` for one of them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises InvalidName."""
        self.patterns = tuple(patterns)
        problem = problem_of(self.patterns)
        if problem is not None:
            raise InvalidName(f"patterns of topics: {problem}", what="pattern")
        self._expression = re.compile("|".join([translate(pattern) for pattern in self.patterns]))

    def matches(self, name: str) -> bool:
        """Whether a topic of this name is one of them."""
        return self._expression.match(name) is not None

    def __str__(self) -> str:
        return ", ".join(self.patterns)

    def __repr__(self) -> str:
        return f"pattern({', '.join(map(repr, self.patterns))})"


def problem_of(patterns: Sequence[object]) -> str | None:
    """What is wrong with patterns; None: nothing."""
    if not 1 <= len(patterns) <= PATTERNS_MAX:
        return f"1..{PATTERNS_MAX} are allowed, not {len(patterns)}"
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            return f"{repr(pattern)[:80]} is none; the rule: {RULE}"
    return None
