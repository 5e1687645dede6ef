"""`sandctl audit`: print the audit logs of all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from sandctl.options.common import common_options, run
from sandctl.output.escaping import printable
from sandctl.output.printing import Printer
from sandctl.output.results import say, show_rows, text_of

if TYPE_CHECKING:
    from sandq.client import Client

POLL_S: Final = 1.0
"""Interval at which nodes are asked for new lines, in s."""
_LAST_MOST: Final = 1000
_COLUMNS = {
    "time": "TIME",
    "node": "NODE",
    "principal": "PRINCIPAL",
    "peer": "PEER",
    "request": "REQUEST",
    "about": "ABOUT",
    "result": "RESULT",
}


@click.command()
@click.option(
    "--last",
    type=click.IntRange(1, _LAST_MOST),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N lines.",
)
@click.option("--follow", is_flag=True, help="Continue with new lines until interrupted.")
@click.option("--node", metavar="NODE", help="Show only the log of this node.")
@common_options
def audit(last: int, follow: bool, node: str | None) -> None:
    """Show the audit log: who did what, and which requests were refused.

    It merges the logs of all nodes. They contain failed logins, and each change with principal, address, object and
    result.

    \b
      sandctl audit
      sandctl audit --last 1000 -o jsonl
      sandctl audit --follow

    RESULT is ok or the code of an error. NO_ANSWER: the connection ended before the answer. A line `lines_lost` says
    how many lines of its node are missing there. A line `lines_collapsed` says how many lines of one principal were
    left out, because the principal had used its share.
    """
    if not follow:

        async def fetch(client: Client) -> None:
            page = await client.admin.audit(last, node=node)
            show_rows([_row(line) for line in page.lines], _COLUMNS)
            _tell(page.lost, page.missing)

        run(fetch)
        return
    begun = False

    async def work(client: Client) -> None:
        import anyio

        nonlocal begun
        printer = Printer()
        try:
            page = await client.admin.audit(last, node=node)
            _tell(page.lost, page.missing)
            begun = True
            while True:
                for line in page.lines:
                    await printer.show(partial(dict, line), partial(_text, line))
                await anyio.sleep(POLL_S)
                page = await client.admin.audit(_LAST_MOST, after=page.position, node=node)
        finally:
            await printer.close()

    try:
        run(work, waits=True)
    except KeyboardInterrupt:
        if not begun:
            raise


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, "about": line.get("about", {"lost": line["lost"]} if "lost" in line else None)}


def _text(line: Mapping[str, Any]) -> bytes:
    row = _row(line)
    return ("  ".join(printable(text_of(row.get(name))) for name in _COLUMNS) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def _tell(lost: Mapping[str, int], missing: Mapping[str, str]) -> None:
    for node, count in lost.items():
        say(
            f"sandctl: {node} has lost {count:,} lines since it started: there were too many, or its disk failed",
            err=True,
        )
    for node, why in missing.items():
        say(f"sandctl: no record of {node}: {why}", err=True)
