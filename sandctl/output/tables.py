"""Tables for people, with the width of the terminal.

In a pipe or a file, each row is one line of any length. On a terminal that is too narrow, headings are folded between
words, and columns that may be cut (values, errors, keys) get narrower, down to a limit. If that is not enough, each row
becomes a block of lines. Ids and offsets are never cut, because people copy them.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence

import click

from sandctl.output.escaping import printable

GAP = 2
LEAST_CHARS = 8
"""Minimum width of a column that may be cut."""
CUTTABLE = frozenset(
    ("key", "unique key", "value", "error", "dead reasons", "dead_reasons", "reason", "settings", "stopped because")
)
_ELLIPSIS = "…"


def terminal_width() -> int | None:
    """Return the width of the terminal at standard output; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(20, shutil.get_terminal_size().columns)  # here, the variable COLUMNS takes precedence


def print_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> None:
    """Print a table to standard output."""
    for line in table_lines(rows, headings, terminal_width(), bold=_may_be_bold()):
        click.echo(line)


def table_lines(
    rows: Sequence[Sequence[str]], headings: Sequence[str], width: int | None, *, bold: bool = False
) -> list[str]:
    """Return the lines of the table; `width` None means unlimited."""
    cells = [[printable(cell) for cell in row] for row in rows]
    heads = [printable(heading) for heading in headings]
    numeric = [_are_numbers([row[at] for row in cells]) for at in range(len(heads))]
    contents = [max((cell_len(row[at]) for row in cells), default=0) for at in range(len(heads))]
    widths = [max(cell_len(head), size) for head, size in zip(heads, contents, strict=True)]
    if width is not None and _total(widths) > width:
        fitted = _fit([max(_longest(head), size) for head, size in zip(heads, contents, strict=True)], heads, width)
        if fitted is None:
            return _blocks(cells, heads, width, bold)
        widths = fitted

    def line(row: Sequence[str]) -> str:
        parts = []
        for text, size, right in zip(row, widths, numeric, strict=True):
            text = cut(text, size)
            pad = " " * (size - cell_len(text))
            parts.append(pad + text if right else text + pad)
        return (" " * GAP).join(parts).rstrip()

    top = [line(row) for row in _folded(heads, widths)]
    return [*(click.style(head, bold=True) if bold else head for head in top), *(line(row) for row in cells)]


def _longest(heading: str) -> int:
    return max(map(cell_len, heading.split(" ")))


def _folded(headings: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Return the headings as lines of the table, each folded between words to its column's width."""
    columns: list[list[str]] = []
    for heading, width in zip(headings, widths, strict=True):
        folded: list[str] = []
        for word in heading.split(" "):
            if folded and cell_len(folded[-1]) + 1 + cell_len(word) <= width:
                folded[-1] += f" {word}"
            else:
                folded.append(word)
        columns.append(folded)
    height = max(map(len, columns), default=0)
    return [[column[at] if at < len(column) else "" for column in columns] for at in range(height)]


def _may_be_bold() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fit(widths: Sequence[int], headings: Sequence[str], width: int) -> list[int] | None:
    """Return narrower widths of columns; the widest column is cut first. None if the table is too wide even then."""
    found = list(widths)
    bounds = [
        min(size, max(LEAST_CHARS, _longest(heading))) if heading.lower() in CUTTABLE else size
        for size, heading in zip(widths, headings, strict=True)
    ]
    excess = _total(found) - width
    if _total(bounds) > width:
        return None
    while excess > 0:
        at = max((at for at in range(len(found)) if found[at] > bounds[at]), key=lambda at: found[at])
        found[at] -= 1
        excess -= 1
    return found


def _blocks(rows: Sequence[Sequence[str]], headings: Sequence[str], width: int, bold: bool) -> list[str]:
    """Return the table with one line per cell, and an empty line between rows."""
    size = max(map(cell_len, headings))
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        for heading, text in zip(headings, row, strict=True):
            chars = max(LEAST_CHARS, width - size - GAP)
            label = heading + " " * (size - cell_len(heading))
            shown = cut(text, chars) if heading.lower() in CUTTABLE else text
            lines.append(f"{click.style(label, bold=True) if bold else label}{' ' * GAP}{shown}")
    return lines


def cell_len(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return the text. If it is too long, return its beginning with an ellipsis."""
    if cell_len(text) <= columns:
        return text
    taken, size = [], 0
    for character in text:
        size += _columns(character)
        if size > columns - 1:
            break
        taken.append(character)
    return "".join(taken) + _ELLIPSIS


def _are_numbers(column: Sequence[str]) -> bool:
    """Return whether a column is aligned right: its cells are numbers or "-"."""
    told = [text for text in column if text != "-"]
    return bool(told) and all(text.replace(",", "").replace(".", "", 1).removeprefix("-").isdecimal() for text in told)
