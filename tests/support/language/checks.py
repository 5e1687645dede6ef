"""Count the patterns of text that is hard to read, by package and by document.

A match of a pattern is a sign of a problem, but some sentences with a match are fine. So each package has a budget of
matches, which only goes down (`budgets.json`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.language import texts
from tests.support.paths import ROOT

BUDGETS: Final = Path(__file__).with_name("budgets.json")

_NUMBERS = "many|much|long|often|few"
STARTS: Final = re.compile(rf"^(What(?! to |$)|Who|Whoever|Whatever|Of|That|Those|So (?:{_NUMBERS}))\b")
"""First words of sentences without a subject, or with a clause as their subject."""
CLAUSES: Final = re.compile(r"\b(?:about|and|as|by|for|from|in|of|on|or|than|to|with) (?:what(?! to )|who|whoever)\b")
"""A clause with "what" or "who" that replaces a noun."""
WORDS: Final = re.compile(
    r"\b(another one|somebody|whoever|told|anew|beside|goes? by|(?:is|are) to be"
    rf"|so (?:{_NUMBERS})\b(?! (?:that|as)\b))",
    re.IGNORECASE,
)
HAVE: Final = re.compile(r"^Have \w")
"""A heading "Have X do Y"."""
PRIVATE: Final = frozenset(
    {
        *("pass", "passes", "turn", "turns", "line", "lines", "room", "way", "ways", "look", "looks", "standing"),
        *("taker", "takers", "door", "chance", "mend", "mended", "twin", "twins", "walk", "lot", "lots", "place"),
        *("places", "told", "tell", "word", "words", "face", "somebody", "whoever", "dear", "dearest"),
    }
)
"""Private words. The glossary of the code has a public word for each of them."""
ORDINARY: Final = frozenset(
    {
        *("line", "lines", "line_number", "first_line", "last_line", "command_line", "request_line", "status_line"),
        *("walk", "place", "pass", "word", "words", "tell", "password", "on_line", "end_line", "line_bytes", "by_line"),
        *("standing", "reported_standing", "change_standing", "changestanding", "linewriter", "lines_dropped"),
        *("lines_lost", "lines_collapsed", "lines_most"),
    }
)
"""Names in which a private word has its ordinary meaning, such as a line of a text, a walk through a tree, a decimal
place and the standing of a node or a clock."""

TERMS: Final = re.compile(r"look_?(?:ahead|up)s?", re.IGNORECASE)
"""Technical terms that contain a private word: a look-ahead, a look-up."""

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SKIPPED = {".venv", ".git", "build", "dist", "node_modules", "__pycache__", "data"}


class Finding(NamedTuple):
    """A place in a file where a pattern matches."""

    path: str
    line: int
    pattern: str
    text: str


def check_text(text: texts.Text) -> Iterator[tuple[str, str]]:
    """Yield the pattern and the sentence of each match in a paragraph."""
    if text.is_docstring and (text.text.startswith("...") or text.text.endswith("...")):
        yield "dots", text.text
    for sentence in texts.sentences(text.text):
        if STARTS.match(sentence) and not sentence.endswith("?"):
            yield "start", sentence
        if HAVE.match(sentence):
            yield "have", sentence
        for pattern, found in (("clause", CLAUSES), ("word", WORDS)):
            for match in found.finditer(sentence):
                yield pattern, f"{match.group()}: {sentence}"


def check_name(name: str) -> bool:
    """Return whether a name has a private word in it."""
    if name.strip("_").lower() in ORDINARY:
        return False
    return any(part.lower() in PRIVATE for part in _PART.findall(TERMS.sub("", name)))


def check_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, pattern and text of each match in a module."""
    module = texts.of_python(source)
    for text in module.texts:
        for pattern, sentence in check_text(text):
            yield text.line, pattern, sentence
    for name in module.names:
        if check_name(name.name):
            yield name.line, "name", name.name


def check_markdown(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, pattern and text of each match in a document."""
    for text in texts.of_markdown(source):
        for pattern, sentence in check_text(text):
            yield text.line, pattern, sentence


def package_of(path: Path) -> str:
    """Return the name of a file's budget: the package of the file, or the document itself."""
    parts = path.relative_to(ROOT).parts
    if path.suffix == ".md":
        return "docs/adr" if parts[:2] == ("docs", "adr") else "/".join(parts)
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def files() -> list[Path]:
    """Return all files that are checked."""
    found = [path for suffix in ("py", "md") for path in ROOT.rglob(f"*.{suffix}")]
    return sorted(path for path in found if not _SKIPPED & set(path.relative_to(ROOT).parts))


def check_file(path: Path) -> list[Finding]:
    """Return all matches in a file."""
    check = check_markdown if path.suffix == ".md" else check_python
    name = str(path.relative_to(ROOT))
    return [Finding(name, *match) for match in check(path.read_text())]


def counts() -> Counter[str]:
    """Return the number of matches of each package and document with at least one match."""
    found: Counter[str] = Counter()
    for path in files():
        found[package_of(path)] += len(check_file(path))
    return +found


def budgets() -> dict[str, int]:
    """Return the maximum number of matches of each package and document. The default is 0."""
    loaded: dict[str, int] = json.loads(BUDGETS.read_text())
    return loaded
