"""Write results: a table for people, JSON for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import click

from sandctl.output.escaping import in_json, lines, printable
from sandctl.output.tables import print_table
from sandctl.settings import settings


def text_of(value: object) -> str:
    """Return a value as a table cell."""
    if value is None or value == []:
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
    """Return a value that JSON can represent: bytes as base64, and integers above 2**53 as text.

    Other languages would round such integers.

    The JSON value of a message stays unchanged.
    """
    if isinstance(value, Mapping):
        return {str(key): part if key == "json" else plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    return value


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return a result as JSON text."""
    return in_json(json.dumps(plain(value), indent=indent, ensure_ascii=False))


def say(text: str, *, err: bool = False) -> None:
    """Print one or more lines for people, with everything escaped that is not visible text."""
    click.echo(lines(text), err=err)


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], limit: int | None = None) -> None:
    """Print rows, up to `limit`. `columns` maps keys to headings of the table. JSON shows all fields."""
    shown = rows[:limit]
    output = settings().output
    if output == "json":
        click.echo(to_json(list(shown), indent=2))
    elif output == "jsonl":
        for row in shown:
            click.echo(to_json(row))
    elif shown:
        print_table([[text_of(row.get(key)) for key in columns] for row in shown], list(columns.values()))
    else:
        click.echo("none", err=True)
    if len(shown) < len(rows):
        _there_is_more(len(shown))


async def show_stream(
    rows: AsyncIterator[Any],
    record: Callable[[Any], Mapping[str, Any]],
    columns: Mapping[str, Callable[[Any], object]],
    limit: int | None,
) -> None:
    """Print rows as they arrive, as `record` makes them for JSON, or in a table with `columns`: heading to cell.

    `rows` must end at most one row after the limit. A row after the limit shows that there are more rows.
    """
    output = settings().output
    table: list[list[str]] = []
    count = 0
    more = False
    async for row in rows:
        if count == limit:
            more = True
            continue
        if output == "table":
            table.append([text_of(cell(row)) for cell in columns.values()])
        elif output == "jsonl":
            click.echo(to_json(record(row)))
        else:
            click.echo((",\n  " if count else "[\n  ") + to_json(record(row)), nl=False)
        count += 1
    if output == "json":
        click.echo("\n]" if count else "[]")
    elif table:
        print_table(table, list(columns))
    elif not count:
        click.echo("none", err=True)
    if more:
        _there_is_more(count)


def _there_is_more(count: int) -> None:
    click.echo(f"sandctl: only the first {count:,} are shown; --limit changes that", err=True)


def counted(count: int, what: str) -> str:
    """Return "1 message", "1,200 messages"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def shortened(text: str, chars: int) -> str:
    """Return text on one line, cut to a number of characters."""
    text = printable(text[: chars + 1])
    return text if len(text) <= chars else text[: chars - 1] + "…"


def show_one(record: Mapping[str, Any]) -> None:
    """Print one result: its fields below one another."""
    output = settings().output
    if output != "table":
        click.echo(to_json(record, indent=2 if output == "json" else None))
        return
    width = max((len(key) for key in record), default=0)
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            click.echo(f"{key}:")
            print_table([[text_of(row.get(name)) for name in value[0]] for row in value], list(value[0]))
        else:
            click.echo(f"{key:<{width}}  {printable(text_of(value))}")


def done(message: str, record: Mapping[str, Any]) -> None:
    """Print that something was done: a sentence for people, the record for programs."""
    if settings().output == "table":
        say(message)
    else:
        show_one(record)
