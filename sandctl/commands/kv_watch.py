"""`sandctl kv watch`: print changes of keys as they happen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.options.times import NOW, SINCE, raw
from sandctl.output.escaping import printable
from sandctl.output.printing import Printer
from sandctl.output.records import change_record, when
from sandctl.output.tables import cut, terminal_width

if TYPE_CHECKING:
    from sandq.client import Change, Client

_GAP = "  "
_VALUE_COLUMNS = 20
"""Minimum width of a value, even if the line then exceeds the width of the terminal."""


@click.command(short_help="Print changes of keys as they happen.")
@topic_argument()
@click.option("--key", metavar="KEY", help="Only changes of this key.")
@click.option("--prefix", metavar="TEXT", help="Only changes of keys that begin with this.")
@click.option(
    "--start",
    type=SINCE,
    default=NOW,
    show_default=True,
    metavar="now|earliest|VERSION",
    help="Start now, at the earliest stored change, or after a version.",
)
@click.option("--latest", is_flag=True, help="Only the latest change of each key.")
@click.option("--max", "maximum", type=click.IntRange(1), metavar="N", help="Exit after N changes.")
@common_options
def watch(topic: str, key: str | None, prefix: str | None, start: str, latest: bool, maximum: int | None) -> None:
    """Print changes of keys of TOPIC as they happen: time, version, key, and value or "(deleted)".

    \b
      sandctl kv watch config
      sandctl kv watch config --prefix app/ -o jsonl
      sandctl kv watch config --start earliest --latest --max 100

    It runs until you interrupt it (Ctrl-C), which gives exit code 0. Changes of one key are printed in order. With
    --start earliest, the stored changes come first. If you start after a VERSION that is older than the topic's
    history, the changes in between have been compacted: the command says so and exits with 1, unless --latest is given.
    """
    if key is not None and prefix is not None:
        raise click.UsageError("--key and --prefix cannot be used together")
    begun = False

    async def work(client: Client) -> None:
        nonlocal begun
        printer = Printer()
        count = 0
        try:
            async with client.kv(topic).watch(raw(key), prefix=raw(prefix), start=start, latest=latest) as changes:
                begun = True
                async for change in changes:
                    await printer.show(partial(change_record, change), partial(_line, change))
                    count += 1
                    if count == maximum:
                        break
        finally:
            await printer.close()

    try:
        run(work, waits=True)
    except KeyboardInterrupt:
        if not begun:
            raise


def _line(change: Change) -> bytes:
    start = _GAP.join((str(when(change.created_ms)), change.version, printable(_text(change.key)), ""))
    value = "(deleted)" if change.value is None else printable(_text(change.value))
    width = terminal_width()
    if width is not None:
        value = cut(value, max(width - len(start), _VALUE_COLUMNS))
    return f"{start}{value}\n".encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
