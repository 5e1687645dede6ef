"""Parses a statement, and checks its limits and that it only reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from sqlglot import exp
from sqlglot.dialects import MySQL
from sqlglot.errors import SqlglotError

from sandq.sql.budget import NESTING, STATEMENT_BYTES, STATEMENT_NODES
from sandq.sql.duck_errors import syntax_text
from sandq.sql.errors import NOT_SUPPORTED, READ_ONLY, SYNTAX, TOO_LARGE, SqlError

# Silence the parser's warnings about unknown syntax: this module raises an error for such syntax.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)

_INSTEAD: Final = (
    "this is read-only: produce, cancel and move messages with sandctl, a client library or HTTP (docs/sql.md)"
)
_WRITING: Final = (
    *(exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable, exp.Merge, exp.Into),
    *(exp.LoadData, exp.Copy, exp.Attach, exp.Detach, exp.Pragma),
)
_WRITING_NAMES: Final = """
alter analyze call check checksum create delete do drop flush grant import insert install kill lock load
optimize purge rename repair replace reset revoke restart shutdown truncate uninstall update xa handler
"""
_WRITING_COMMANDS: Final = frozenset(_WRITING_NAMES.split())


def parse(text: str) -> exp.Expr | None:
    """Return the single statement in a text, parsed. None if the text has only comments. Raises SqlError if the text is
    invalid."""
    if len(text) > STATEMENT_BYTES:
        raise SqlError(
            TOO_LARGE, f"the statement has {len(text):,} characters; at most {STATEMENT_BYTES:,} are allowed"
        )
    if text.count("(") > STATEMENT_NODES // 4 or _depth(text) > NESTING:
        raise SqlError(TOO_LARGE, f"the statement nests more than {NESTING} deep, or has too many brackets")
    first = _command_of(text)
    try:
        found = [one for one in _parsed(text) if not isinstance(one, (type(None), exp.Semicolon))]
    except (SqlglotError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        if first in _WRITING_COMMANDS:
            raise SqlError(READ_ONLY, _INSTEAD) from None
        raise SqlError(SYNTAX, f"You have an error in your SQL syntax: {_describe_error(error)}") from None
    if not found:
        return None
    if len(found) > 1:
        raise SqlError(SYNTAX, "several statements in one: send them one by one")
    tree = found[0]
    assert isinstance(tree, exp.Expr)
    if isinstance(tree, _WRITING) or (first in _WRITING_COMMANDS and not isinstance(tree, exp.Kill)):
        raise SqlError(READ_ONLY, _INSTEAD)
    count = 0
    for node in tree.walk():
        count += 1
        if isinstance(node, _WRITING):
            raise SqlError(READ_ONLY, _INSTEAD)
    if count > STATEMENT_NODES:
        raise SqlError(TOO_LARGE, f"the statement has {count:,} parts; at most {STATEMENT_NODES:,} are taken")
    if _expanded_parts(tree, {}) > STATEMENT_NODES:
        raise SqlError(
            TOO_LARGE,
            f"the statement has more than {STATEMENT_NODES:,} parts with each name of a WITH replaced by its query: "
            "name these queries less often",
        )
    return tree


def _expanded_parts(query: exp.Expr, known: Mapping[str, int]) -> int:
    """Return the number of parts of a query in which each name of a WITH is replaced by the query that it names.
    `known`: parts of the queries that are named around it."""
    # DuckDB plans each use of a name separately, and cannot be interrupted meanwhile. With 25 queries, each of which
    # uses the previous one twice, planning takes gigabytes.
    sizes = dict(known)
    own = query.args.get("with_")
    for part in own.expressions if own is not None else ():
        sizes[part.alias.lower()] = _expanded_parts(part.this, sizes)

    def is_apart(node: exp.Expr) -> bool:
        """Return whether a part has common table expressions of its own."""
        return node is not query and (node is own or node.args.get("with_") is not None)

    total = 0
    for node in query.walk(prune=is_apart):
        if not is_apart(node):
            total += 1
            if isinstance(node, exp.Table) and not node.db:
                total += sizes.get(node.name.lower(), 0)
        elif node is not own:
            total += _expanded_parts(node, sizes)
    return min(total, _MANY)


_MANY: Final = 1 << 40
"""Largest number of parts that is counted."""


class _Bounded(MySQL.Parser):  # type: ignore[misc]  # it is Any to mypy
    """A parser with a limited number of steps. Because the parser backtracks, nested constructs can take exponentially
    many steps."""

    steps = 0
    most = 0

    def _advance(self, times: int = 1) -> None:
        """Advance the parser. Raise SqlError if a statement takes too many steps."""
        self.steps += 1
        if self.steps > self.most:
            raise SqlError(TOO_LARGE, "the statement nests too deep: simplify it")
        super()._advance(times)


_STEPS: Final = 100
"""Maximum number of the parser's steps per token of a statement; one or two are common."""


def _parsed(text: str) -> list[exp.Expr | None]:
    """Parse a text. Raises SqlError if that takes too many steps, and errors of sqlglot."""
    dialect = MySQL()
    tokens = dialect.tokenize(text)
    parser = _Bounded(dialect=dialect)
    parser.most = _STEPS * (len(tokens) + 10)
    found: list[exp.Expr | None] = parser.parse(tokens, text)
    return found


def not_supported(what: str) -> SqlError:
    """Return the error for a statement that is valid but not supported."""
    return SqlError(NOT_SUPPORTED, f"{what} is not supported (docs/sql.md)")


def whole_number(text: str) -> int | None:
    """Return the number in a text of decimal digits; None for other texts, and for more digits than `_DIGITS`."""
    # int() raises for digits such as "²", for which isdigit() is true, and for numbers with thousands of digits.
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None


_DIGITS: Final = 20
"""Digits of the largest 64-bit number."""


def _depth(text: str) -> int:
    """Return the maximum depth of round brackets."""
    depth = most = 0
    for character in text:
        if character == "(":
            depth += 1
            most = max(most, depth)
        elif character == ")":
            depth -= 1
    return most


def _command_of(text: str) -> str:
    """Return the first word of a text in lower case, after comments and brackets; "" if there is none."""
    text = text.lstrip(" \t\r\n;(")
    while text.startswith(("/*", "--", "#")):
        end = text.find("*/") + 2 if text.startswith("/*") else text.find("\n") + 1
        if end < 2:
            return ""
        text = text[end:].lstrip(" \t\r\n;(")
    return text.split(None, 1)[0].lower().rstrip(";") if text else ""


def _describe_error(error: Exception) -> str:
    """Return what is wrong in a statement, with the line and the column if the parser reports them."""
    if isinstance(error, RecursionError):
        return "it nests too deep"
    details = getattr(error, "errors", None)
    if details:
        one = details[0]
        near = str(one.get("highlight") or "")[:60]
        said = syntax_text(str(one.get("description")))
        return f"{said} near {near!r} at line {one.get('line')}, column {one.get('col')}"
    return syntax_text(str(error).split("\n")[0][:200])
