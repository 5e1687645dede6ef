"""Writing results: a table for people, JSON for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from sandctl.settings import settings


def text_of(value: object) -> str:
    """A cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        parts = (
            (key, f"({text_of(part)})" if isinstance(part, Mapping) else text_of(part)) for key, part in value.items()
        )
        return " ".join(f"{key}={part}" for key, part in parts)
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(part) for part in value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def plain(value: object) -> object:
    """A value that JSON knows: bytes as base64, integers above 2**53 as text (other languages would round them)."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    return value


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text of a result."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Rows; `columns` is what a table shows: key -> heading. JSON shows everything."""
    output = settings().output
    if output == "json":
        click.echo(to_json(list(rows), indent=2))
    elif output == "jsonl":
        for row in rows:
            click.echo(to_json(row))
    elif rows:
        _table([[text_of(row.get(key)) for key in columns] for row in rows], list(columns.values()))
    else:
        click.echo("none", err=True)


def show_one(record: Mapping[str, Any]) -> None:
    """One result: its fields below one another."""
    output = settings().output
    if output != "table":
        click.echo(to_json(record, indent=2 if output == "json" else None))
        return
    width = max((len(key) for key in record), default=0)
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            click.echo(f"{key}:")
            _table([[text_of(part) for part in row.values()] for row in value], list(value[0]))
        else:
            click.echo(f"{key:<{width}}  {text_of(value)}")


def done(message: str, record: Mapping[str, Any]) -> None:
    """Something was done: a sentence for people, the record for programs."""
    if settings().output == "table":
        click.echo(message)
    else:
        show_one(record)


def _table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        console.print(table)
        return
    console.width = 1000  # a file or a pipe: one line a row
    with console.capture() as capture:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
