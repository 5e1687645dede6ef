"""Extract the sentences of docstrings, comments and documents, and the names that code defines."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_CODE = re.compile(r"``.+?``|`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_DIRECTIVE = re.compile(r"^(type:|noqa|fmt:|pragma|ruff:|mypy:|!)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE_INDENT = "    "


class Text(NamedTuple):
    """A paragraph of prose."""

    line: int
    text: str
    is_docstring: bool = False


class Name(NamedTuple):
    """A name that code defines."""

    line: int
    name: str


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, with code replaced by "X"."""
    plain = _CODE.sub("X", _LINK.sub(r"\1", text))
    return [one for one in _SENTENCE_END.split(" ".join(plain.split())) if one]


class Module(NamedTuple):
    """The prose of a module, and the names that it defines."""

    texts: list[Text]
    """Paragraphs of docstrings, attribute docstrings and comments."""
    names: list[Name]
    """Functions, classes, parameters and attributes."""


def of_python(source: str) -> Module:
    """Read a module."""
    found = Module([], [])
    for statement in _statements(ast.parse(source)):
        if isinstance(statement, ast.Expr):
            value = statement.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                paragraphs = _paragraphs(value.value)
                found.texts.extend([Text(statement.lineno, one, is_docstring=True) for one in paragraphs])
        else:
            found.names.extend(_names(statement))
    found.texts.extend([Text(line, text) for line, text in _comments(source)])
    return found


def of_markdown(source: str) -> list[Text]:
    """Return the paragraphs, headings, list items and table rows of a document, without its code blocks."""
    found: list[Text] = []
    lines: list[str] = []
    first, in_code = 1, False

    def end() -> None:
        if lines:
            found.append(Text(first, " ".join(lines)))
            lines.clear()

    for number, raw in enumerate(source.splitlines(), 1):
        if _FENCE.match(raw):
            end()
            in_code = not in_code
            continue
        if in_code:
            continue
        line = raw.strip()
        is_row, begins = line.startswith("|"), re.match(r"^(#+|[-*]|\d+\.)\s+", line)
        if not line or is_row or begins:
            end()
        if is_row:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found += [Text(number, cell) for cell in cells if cell and not re.fullmatch(r"[-: ]+", cell)]
        elif line:
            if not lines:
                first = number
            lines.append(line[begins.end() :] if begins else line)
            if begins and begins.group(1).startswith("#"):
                end()
    end()
    return found


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements of a block, and those in their blocks."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for part in getattr(node, field, ()):
            if isinstance(part, ast.stmt):
                yield part
            if not isinstance(part, ast.Expr):
                yield from _statements(part)


def _names(statement: ast.stmt) -> Iterator[Name]:
    """Yield the names that a statement defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield Name(statement.lineno, statement.name)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        of = statement.args
        for parameter in (*of.posonlyargs, *of.args, *of.kwonlyargs):
            yield Name(parameter.lineno, parameter.arg)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
        if isinstance(statement.target, ast.Name):
            yield Name(statement.lineno, statement.target.id)
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Attribute):
                yield Name(part.lineno, part.attr)


def _paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; a paragraph that is indented is code."""
    first, _, rest = docstring.partition("\n")
    for block in re.split(r"\n\s*\n", f"{first.strip()}\n{textwrap.dedent(rest)}"):
        if block.strip() and not block.startswith(_CODE_INDENT):
            yield block.strip()


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each block of comments on consecutive lines."""
    if "#" not in source:
        return
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text, number = token.string.lstrip("#").strip(), token.start[0]
        if _DIRECTIVE.match(text) or not text.strip("-= "):
            continue
        if block and number != last + 1:
            yield first, " ".join(block)
            block = []
        if not block:
            first = number
        block.append(text)
        last = number
    if block:
        yield first, " ".join(block)
